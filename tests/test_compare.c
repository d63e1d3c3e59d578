/* Two result files side by side: which rows meet, what their ratios are, and what cannot be compared. */
#include "tests/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *file(const char *name, const char *text)
{
    static char paths[4][96];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", command_folder(), name);
    command_write(path, text, strlen(text));
    return path;
}

/* The comparison as CSV, the header left out. */
static void compares(const char *a, const char *b, const char *expected)
{
    static const char header[] = "row,column,a,b,ratio,note\n";
    struct command_outcome outcome = command_run("compare '%s' '%s' --format csv", file("a.csv", a), file("b.csv", b));
    if (outcome.status != 0)
        fail_msg("status %d: %s", outcome.status, outcome.err);
    assert_memory_equal(outcome.out, header, sizeof header - 1);
    assert_string_equal(outcome.out + sizeof header - 1, expected);
    command_free(&outcome);
}

static void rows_meet_by_their_keys(void **state)
{
    (void)state;
    /* in another order, with columns of their own, and a row that only one has */
    compares("context,kv_bytes,mine\n512,100,1\n1024,200,2\n2048,400,3\n",
             "other,kv_bytes,context\nx,300,1024\nx,100,512\n",
             "context=512,kv_bytes,100,100,1.0000,\n"
             "context=1024,kv_bytes,200,300,1.5000,\n"
             "context=2048,,,,,only in A\n");
    compares("context,x\n1,2\n", "context,x\n1,4\n9,9\n", "context=1,x,2,4,2.0000,\ncontext=9,,,,,only in B\n");
    /* two keys; 512 and 512.0 are one number */
    compares("context,batch,t\n512,1,2.0\n512,2,3\n", "batch,context,t\n2,512.0,6\n1,512.0,1\n",
             "context=512 batch=1,t,2.0,1,0.5000,\ncontext=512 batch=2,t,3,6,2.0000,\n");
    /* empty cells and zeros have no ratio */
    compares("context,x,y\n1,0,\n2,,\n", "context,x,y\n1,5,7\n2,,8\n",
             "context=1,x,0,5,,\ncontext=1,y,,7,,\ncontext=2,y,,8,,\n");
}

static void text_tells_rows_apart(void **state)
{
    (void)state;
    /* the columns that say what a row is may have names that no experiment uses */
    compares("context,scheme,x\n1,red,1\n1,blue,2\n", "context,scheme,x\n1,blue,6\n1,red,2\n",
             "context=1 scheme=red,x,1,2,2.0000,\ncontext=1 scheme=blue,x,2,6,3.0000,\n");
    /* rows that nothing tells apart meet in order */
    compares("context,x\n1,1\n1,2\n", "context,x\n1,10\n1,40\n",
             "context=1,x,1,10,10.0000,\ncontext=1,x,2,40,20.0000,\n");
    /* two models compared: the model is no key */
    compares("model,context,x\nbig,1,4\n", "model,context,x\nsmall,1,1\n", "context=1,x,4,1,0.2500,\n");
    /* the same of two devices */
    compares("model,device,context,x\nm,cpu,1,4\n", "model,device,context,x\nm,cuda,1,1\n",
             "model=m context=1,x,4,1,0.2500,\n");
}

/* Columns of the experiment tpot: its keys are context and batch, though `n` and `tpot_ms_p50` are whole numbers too.
 */
static void an_experiment_names_its_keys(void **state)
{
    (void)state;
    struct command_outcome outcome = command_run("run formula --out %s/one --format csv", command_folder());
    assert_int_equal(outcome.status, 0);
    command_free(&outcome);
    outcome = command_run("run formula --out %s/two --format csv --kv-dtype f32", command_folder());
    assert_int_equal(outcome.status, 0);
    command_free(&outcome);
    outcome =
        command_run("compare %s/one/formula.csv %s/two/formula.csv --format csv", command_folder(), command_folder());
    assert_int_equal(outcome.status, 0);
    assert_non_null(strstr(outcome.out, "\nmodel=qwen2.5-7b,num_hidden_layers,28,28,1.0000,\n"));
    assert_non_null(strstr(outcome.out, "\nmodel=qwen2.5-7b,kv_bytes_per_token,57344,114688,2.0000,\n"));
    assert_null(strstr(outcome.out, "only in"));
    command_free(&outcome);
}

static void against_the_lessons(void **state)
{
    (void)state;
    const char *data = getenv("KVLAB_DATA");
    const char *mine = file("logits.csv", "model,device,dtype,weights,context,logits_positions,logits_bytes,kv_bytes\n"
                                          "qwen2.5-1.5b,cpu,bf16,synthetic,2048,all,622329856,58720256\n");
    struct command_outcome outcome =
        command_run("compare %s '%s/lessons/logits.csv' --format csv", mine, data ? data : "data");
    assert_int_equal(outcome.status, 0);
    assert_non_null(strstr(outcome.out, "context=2048,logits_bytes,622329856,622329856,1.0000,"));
    assert_non_null(strstr(outcome.out, "context=8192,,,,,only in B"));
    assert_non_null(strstr(outcome.err, "1 rows in both, 0 only in A, 1 only in B"));
    command_free(&outcome);
}

/* The lessons' slope in MB, anatomy in MiB and under names of its own, phases in seconds and GB: in either order. */
static void units_and_names(void **state)
{
    (void)state;
    static const char slope[] = "model,context,kv_tensor_bytes,kv_ledger_bytes\nm,2048,58720256,58720256\nm,64,1,1\n";
    static const char anatomy[] = "model,moment,weights_bytes,ledger_bytes,reserved_bytes,driver_bytes,context\n"
                                  "m,start,0,0,0,106954752,512\nm,start,0,0,0,213909504,4096\n"
                                  "m,prefill with all logits,1,4461061734.4,2,3,4096\n"
                                  "m,results released,1,3097912934.4,1,1,4096\nm,released,0,0,0,0,4096\n";
    static const struct {
        const char *mine, *lesson, *word;
        bool reversed;
    } known[] = {
        {slope, "slope", "context=2048,kv_tensor_bytes,58720256,58700000,0.9997,kv_tensor_mb 58.7\n", false},
        {slope, "slope", "context=2048,kv_tensor_mb,58.7,58.720256,1.0003,kv_tensor_bytes 58720256\n", true},
        /* 4,254.4 x 1,048,576; 102 MiB, and twice as much at the lesson's context */
        {anatomy, "anatomy",
         "moment=prefill with all logits context=4096,ledger_bytes,4461061734.4,4461061734.4,1.0000,ledger_mib "
         "4254.4\n",
         false},
        {anatomy, "anatomy", "moment=start context=4096,driver_bytes,213909504,106954752,0.5000,driver_mib 102\n",
         false},
        {anatomy, "anatomy", "moment=start context=4096,driver_mib,102,204,2.0000,driver_bytes 213909504\n", true},
        /* 2,954.4 x 1,048,576: the lesson's release keeps the weights, kvlab's released gives them back too */
        {anatomy, "anatomy",
         "moment=results released context=4096,ledger_bytes,3097912934.4,3097912934.4,1.0000,ledger_mib 2954.4\n",
         false},
        {anatomy, "anatomy", "moment=released context=4096,,,,,only in A\n", false},
        {"prompt_tokens,ttft_ms,peak_ledger_bytes\n64,39.2,3120000000\n", "phases",
         "prompt_tokens=64,ttft_ms,39.2,19.6,0.5000,ttft_s 0.0196\n"
         "prompt_tokens=64,peak_ledger_bytes,3120000000,3120000000,1.0000,peak_ledger_gb 3.12\n",
         false},
        {"batch,ttft_ms,tokens_per_s\n1,44,97.2\n", "batch",
         "batch=1,ttft_ms,44,44,1.0000,ttft_s 0.044\nbatch=1,tokens_per_s,97.2,48.6,0.5000,\n", false},
        {"context,kv_bytes,extra_ledger_bytes\n2048,58720256,691100000\n", "logits",
         "context=2048,kv_bytes,58720256,58700000,0.9997,kv_mb 58.7\n"
         "context=2048,extra_ledger_bytes,691100000,691100000,1.0000,extra_ledger_mb 691.1\n",
         false},
    };
    const char *data = getenv("KVLAB_DATA");
    for (size_t i = 0; i < COUNT(known); i++) {
        const char *mine = file("mine.csv", known[i].mine);
        char lesson[4096];
        snprintf(lesson, sizeof lesson, "%s/lessons/%s.csv", data ? data : "data", known[i].lesson);
        struct command_outcome outcome = command_run(
            "compare '%s' '%s' --format csv", known[i].reversed ? lesson : mine, known[i].reversed ? mine : lesson);
        if (outcome.status != 0 || !strstr(outcome.out, known[i].word))
            fail_msg("%s: expected \"%s\", got %s%s", known[i].lesson, known[i].word, outcome.out, outcome.err);
        command_free(&outcome);
    }
    /* a rate is no time, sizes are no times, and a column that both have meets its own */
    compares("context,x_per_s,y_bytes,z\n1,2,3,4\n", "context,x_per_ms,y_s,z\n1,2,3,4\n", "context=1,z,4,4,1.0000,\n");
    compares("context,x_bytes,x_mb\n1,2,3\n", "context,x_mb\n1,3\n", "context=1,x_mb,3,3,1.0000,\n");
    compares("context,x_gib\n1,2\n", "context,x_kib\n1,1048576\n", "context=1,x_gib,2,1,0.5000,x_kib 1048576\n");
}

/* names.csv in the folder of a table; one of another kind is an error that names it. */
static void names_beside_a_table(void **state)
{
    (void)state;
    const char *mine = file("mine.csv", "context,x\n1,2\n"), *other = file("other.csv", "length,y\n1,4\n");
    const char *names = file("names.csv", "file,column,cell,as\nother.csv,length,,context\nother.csv,y,,x\n");
    struct command_outcome outcome = command_run("compare '%s' '%s' --format csv", mine, other);
    assert_int_equal(outcome.status, 0);
    assert_non_null(strstr(outcome.out, "context=1,x,2,4,2.0000,"));
    command_free(&outcome);
    file("names.csv", "file,to\nother.csv,x\n");
    command_refuses(2, "names.csv: must have the columns", "compare '%s' '%s'", mine, other);
    remove(names);
}

static void formats(void **state)
{
    (void)state;
    char a[96];
    snprintf(a, sizeof a, "%s", file("a.csv", "context,x\n1,2\n"));
    struct command_outcome outcome = command_run("compare %s %s --format json", a, a);
    assert_int_equal(outcome.status, 0);
    assert_non_null(strstr(outcome.out, "\"compare\""));
    command_free(&outcome);
    outcome = command_run("compare --format md %s %s", a, a);
    assert_non_null(strstr(outcome.out, "| context=1 | x | 2 | 2 |"));
    command_free(&outcome);
    outcome = command_run("compare %s %s", a, a);
    assert_non_null(strstr(outcome.out, "context=1  x"));
    assert_null(strstr(outcome.out, "dry run"));
    command_free(&outcome);
    outcome = command_run("compare --help");
    assert_int_equal(outcome.status, 0);
    command_free(&outcome);
}

static void what_cannot_be_compared(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b, *word;
    } known[] = {
        {"context,x\n1,2\n", "batch,x\n1,2\n", "no key column in common"},
        {"context,x\n1,2\n", "context,x\n3,2\n", "no value in common in context"},
        {"context,x\n1,2\n", "context,y\n1,2\n", "no column of numbers in common"},
        {"context,x\n1,two\n", "context,x\n1,three\n", "no column of numbers in common"},
        {"context,batch,x\n1,2,3\n2,1,3\n", "context,batch,x\n1,1,3\n2,2,3\n", "no row of one file is in the other"},
        {"context,x\n", "context,x\n1,2\n", "no value in common"},
        {"", "context,x\n1,2\n", "the file is empty"},
        {"context,x\n1\n", "context,x\n1,2\n", "number of cells"},
        {"context,x\n\"1,2\n", "context,x\n1,2\n", "a.csv"},
        {"context,x,x\n1,2,3\n", "context,x\n1,2\n", "two columns have the name \"x\""},
    };
    for (size_t i = 0; i < COUNT(known); i++)
        command_refuses(2, known[i].word, "compare '%s' '%s'", file("a.csv", known[i].a), file("b.csv", known[i].b));
    command_refuses(2, "cannot read", "compare /no/such.csv /none.csv");
    command_refuses(2, "A.csv B.csv is missing", "compare /no/such.csv");
    command_refuses(2, "is all that can be given", "compare a b c");
    command_refuses(2, "unknown option --out", "compare a b --out x");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_meet_by_their_keys),
        cmocka_unit_test(text_tells_rows_apart),
        cmocka_unit_test(an_experiment_names_its_keys),
        cmocka_unit_test(against_the_lessons),
        cmocka_unit_test(units_and_names),
        cmocka_unit_test(names_beside_a_table),
        cmocka_unit_test(formats),
        cmocka_unit_test(what_cannot_be_compared),
    };
    return cmocka_run_group_tests(tests, command_setup, command_cleanup);
}
