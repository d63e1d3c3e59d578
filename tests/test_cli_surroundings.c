/* The binary among what a shell and a file system can do to it: closed streams, pipes without readers, FIFOs in the
   place of files, two runs at once. */
#include "tests/experiment_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *place;

/* A script with `kv ARGUMENTS` for `kvlab run kv` on the small model into $P/out, and $P the place; its status. */
static void shell(int status, const char *script)
{
    static const char prelude[] =
        "k() { $KVLAB_RUNNER \"$KVLAB\" \"$@\"; }\n"
        "run() { name=$1; shift; k run $name --model \"$P/tiny\" --device cpu --out \"$P/out\" "
        "\"$@\"; }\n";
    char text[4096];
    assert_in_range(snprintf(text, sizeof text, "%s%s", prelude, script), 1, (int)sizeof text - 1);
    int ended = system(text); /* NOLINT(cert-env33-c): a test's own words */
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status) {
        (void)!system("cat \"$P/err\" >&2"); /* NOLINT(cert-env33-c) */
        fail_msg("%s: status %d, not %d", script, WIFEXITED(ended) ? WEXITSTATUS(ended) : -1, status);
    }
}

static int fresh(void **state)
{
    (void)state;
    return system("rm -rf \"$P\" && mkdir -p \"$P/tiny\" && cp \"$PLACE/tiny/config.json\" \"$P/tiny\""); /* NOLINT */
}

/* libgomp reads its environment when it is loaded: what a process was started with that has begun to measure. */
static void threads_spin_briefly(void **state)
{
    static const char script[] =
        "%s \"$KVLAB\" run tpot --model \"$P/tiny\" --device cpu --out \"$P/out\" --contexts 16,32 --batch 1 "
        "--reps 100000 >/dev/null 2>\"$P/progress\" & pid=$!; n=0\n"
        "while [ $n -lt 200 ] && ! [ -s \"$P/progress\" ]; do sleep 0.05; n=$((n + 1)); done\n"
        "tr '\\0' '\\n' < /proc/$pid/environ | grep -q '%s'; status=$?\n"
        "kill -KILL $pid; exit $status";
    static const char *const cases[][2] = {{"unset GOMP_SPINCOUNT OMP_WAIT_POLICY;", "^GOMP_SPINCOUNT=2000$"},
                                           {"export GOMP_SPINCOUNT=77;", "^GOMP_SPINCOUNT=77$"}};
    (void)state;
    const char *runner = getenv("KVLAB_RUNNER");
    if (runner && *runner)
        skip(); /* the process is the runner's */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text, script, cases[i][0], cases[i][1]);
        fresh(NULL);
        shell(0, text);
    }
}

static void closed_streams_are_no_results_files(void **state)
{
    (void)state;
    shell(0, "run kv --contexts 16,32 2>&- >/dev/null && [ $(wc -l < \"$P/out/kv.csv\") = 3 ] && ! grep -q 'kvlab:' "
             "\"$P/out/kv.csv\" && grep -q '\"complete\": true' \"$P/out/kv.meta.json\"");
    shell(0, "run kv --contexts 16,32 <&- 2>&- >/dev/null && [ $(wc -l < \"$P/out/kv.csv\") = 3 ]");
    shell(2, "run kv --contexts 16,32 >&- 2>\"$P/err\"");
    shell(0, "grep -q 'stdout' \"$P/err\" && [ $(wc -l < \"$P/out/kv.csv\") = 3 ] && grep -q '\"complete\": true' "
             "\"$P/out/kv.meta.json\"");
    shell(2, "run kv --contexts 16,32 <&- >&- 2>&-");
    shell(2, "k list >&- 2>\"$P/err\"");
}

static void a_pipe_without_a_reader_finds_whole_files(void **state)
{
    (void)state;
    /* The reader is gone before the writer starts. */
    shell(0, "mkfifo \"$P/pipe\"; (exec 3<>\"$P/pipe\"; run slope --contexts 16,32,64 2>/dev/null | (exec <&-; true)); "
             "[ $(grep -l '\"complete\": true' \"$P\"/out/slope*.meta.json | wc -l) = 2 ]");
}

static void fifos_are_refused(void **state)
{
    (void)state;
    shell(0, "run kv --contexts 16 >/dev/null 2>\"$P/err\"");
    shell(2, "rm \"$P/out/kv.meta.json\" && mkfifo \"$P/out/kv.meta.json\" && timeout -s KILL 60 $KVLAB_RUNNER "
             "\"$KVLAB\" run kv "
             "--model \"$P/tiny\" --device cpu --out \"$P/out\" --resume 2>\"$P/err\"");
    shell(0, "grep -q 'regular file\\|kv.meta.json' \"$P/err\"");
    shell(2,
          "rm \"$P\"/out/kv.*; mkfifo \"$P/out/kv.csv\" && timeout -s KILL 60 $KVLAB_RUNNER \"$KVLAB\" run kv --model "
          "\"$P/tiny\" --device cpu --out \"$P/out\" 2>\"$P/err\"");
    shell(0, "rm -r \"$P/out\"; mkdir \"$P/shards\"; cp \"$P/tiny/config.json\" \"$P/shards\"; mkfifo "
             "\"$P/shards/model.safetensors.index.json\"");
    shell(2, "timeout -s KILL 60 $KVLAB_RUNNER \"$KVLAB\" run kv --model \"$P/shards\" --device cpu --out \"$P/out\" "
             "2>\"$P/err\"");
    shell(0, "grep -q 'index.json: not a regular file' \"$P/err\"");
    shell(2, "rm \"$P/tiny/config.json\"; mkfifo \"$P/tiny/config.json\"; timeout -s KILL 60 $KVLAB_RUNNER \"$KVLAB\" "
             "run kv "
             "--model \"$P/tiny\" --device cpu --out \"$P/out\" 2>\"$P/err\"");
    shell(0, "grep -q 'no config.json' \"$P/err\"");
}

static void a_second_run_is_refused(void **state)
{
    (void)state;
    /* The last context takes long; the others do not. exec: the process that is killed is kvlab, not a shell around it.
     */
    shell(2, "{ exec $KVLAB_RUNNER \"$KVLAB\" run kv --model \"$P/tiny\" --device cpu --out \"$P/out\" "
             "--contexts 16,32,100000 >/dev/null 2>&1; } & first=$!; "
             "until [ -s \"$P/out/kv.meta.json\" ]; do sleep 0.02; done; "
             "run kv --contexts 48 2>\"$P/err\"; status=$?; kill -TERM $first; wait $first; exit $status");
    shell(0, "grep -q 'another kvlab run' \"$P/err\" && [ $(wc -l < \"$P/out/kv.csv\") = 3 ]");
}

static void samples_into_a_pipe_are_refused(void **state)
{
    (void)state;
    shell(2, "(run cache --quick --samples /dev/stdout 2>\"$P/err\"; echo $? >\"$P/status\") | cat; exit $(cat "
             "\"$P/status\")");
    shell(0, "grep -q 'not a regular file' \"$P/err\"");
    shell(2, "run cache --quick --samples \"$P/tiny/config.json\" 2>\"$P/err\"");
    shell(0, "cmp -s \"$P/tiny/config.json\" \"$PLACE/tiny/config.json\" && [ ! -e \"$P/out/cache.csv\" ]");
}

static void threads_that_cannot_be_made(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* its own memory is beyond any limit */
#endif
    const char *runner = getenv("KVLAB_RUNNER");
    if (runner && runner[0])
        skip();
    shell(3, "ulimit -v 6000000; ulimit -s 8192; run kv --contexts 16 --threads 4096 2>\"$P/err\"");
    shell(0, "[ $(wc -l < \"$P/err\") = 1 ] && grep -q '^kvlab: device cpu.*threads' \"$P/err\"");
}

static void a_long_path_leaves_the_reason(void **state)
{
    (void)state;
    shell(2,
          "long=$P/out; i=0; while [ $i -lt 900 ]; do long=$long/x; i=$((i + 1)); done; k run kv --model \"$P/tiny\" "
          "--device cpu --out \"$long/$(printf '%0300d' 0)\" 2>\"$P/err\"");
    shell(0,
          "[ $(wc -l < \"$P/err\") = 1 ] && grep -q '000: cannot make this folder: File name too long; give another' "
          "\"$P/err\"");
}

static int make(void **state)
{
    char *at = NULL, whole[4096];
    const char *given = getenv("KVLAB_BIN");
    struct csv_table none = {0};
    csv_table_free(&none);
    if (place_make(state) || !realpath(given ? given : "build/kvlab", whole))
        return -1;
    if (asprintf(&place, "%s/here", place_folder()) < 0 || asprintf(&at, "%s", place_folder()) < 0)
        return -1;
    setenv("PLACE", at, 1);
    setenv("P", place, 1);
    setenv("KVLAB", whole, 1);
    free(at);
    return 0;
}

static int unmake(void **state)
{
    free(place);
    return place_remove(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(threads_spin_briefly, fresh),
        cmocka_unit_test_setup(closed_streams_are_no_results_files, fresh),
        cmocka_unit_test_setup(a_pipe_without_a_reader_finds_whole_files, fresh),
        cmocka_unit_test_setup(fifos_are_refused, fresh),
        cmocka_unit_test_setup(a_second_run_is_refused, fresh),
        cmocka_unit_test_setup(samples_into_a_pipe_are_refused, fresh),
        cmocka_unit_test_setup(threads_that_cannot_be_made, fresh),
        cmocka_unit_test_setup(a_long_path_leaves_the_reason, fresh),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
