#include "tests/staged_run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_WORDS = 64, MOST_LEFT = 64 };
static const uint64_t process_bytes = UINT64_C(1) << 30;

struct staged_event {
    double ms;
};

/* The run in progress. */
static struct {
    struct stage stage;
    const struct experiment *experiment;
    struct bench *bench;
    const struct device_ops *real;
    struct device_ops ops;
    double clock_ms;
    int rows; /* of the pass whose time has not been taken yet, else 0 */
    void *left[MOST_LEFT];
    size_t left_count;
    int64_t layers; /* the config's own number of layers while it is doubled, else 0 */
    int looks;      /* at memory, since it was doubled */
} now;

/* ---- the clock -------------------------------------------------------------------------------------------------- */

static enum status event_create(struct device *device, struct device_event **event, struct error *error)
{
    (void)device;
    *event = calloc(1, sizeof(struct staged_event));
    return *event ? STATUS_OK : error_set(error, STATUS_DEVICE, "out of memory");
}

static void event_destroy(struct device *device, struct device_event *event)
{
    (void)device;
    free(event);
}

static enum status event_record(struct device *device, struct device_event *event, struct error *error)
{
    (void)device;
    (void)error;
    ((struct staged_event *)(void *)event)->ms = now.clock_ms;
    return STATUS_OK;
}

static enum status event_elapsed_ms(struct device *device, struct device_event *start, struct device_event *end,
                                    double *ms, struct error *error)
{
    (void)device;
    (void)error;
    *ms = ((struct staged_event *)(void *)end)->ms - ((struct staged_event *)(void *)start)->ms;
    return STATUS_OK;
}

/* In steps of 2^-20, so that differences are exact whatever came before. */
static void advance(double ms)
{
    now.clock_ms += round(ms * (1 << 20)) / (1 << 20);
}

static enum status embed(struct device *device, float *out, const void *table, enum dtype dtype, const int32_t *tokens,
                         int rows, int hidden, struct error *error)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.csv", now.bench->options.out, now.experiment->name);
    if (now.stage.interrupted && access(path, F_OK) == 0)
        raise(SIGINT);
    now.rows = rows;
    return now.real->embed(device, out, table, dtype, tokens, rows, hidden, error);
}

static enum status attention(struct device *device, const struct attention_args *args, struct error *error)
{
    if (now.rows) /* in the first layer */
        advance(now.stage.pass_ms ? now.stage.pass_ms(now.rows, args->batch->host_context[0]) : 1.0 / 64);
    now.rows = 0;
    return now.real->attention(device, args, error);
}

static enum status read_bytes(struct device *device, const void *memory, size_t bytes, uint64_t *checksum,
                              struct error *error)
{
    (void)device;
    (void)memory;
    (void)error;
    advance((double)bytes / now.stage.read_gbps / 1e6 / (now.stage.fast_passes-- > 0 ? 10.0 : 1.0));
    *checksum = 0;
    return STATUS_OK;
}

static enum status linear(struct device *device, const struct linear_args *args, struct error *error)
{
    bool ceiling = args->in >= 128; /* larger than any model here */
    if (ceiling)
        advance(1.0);
    return ceiling ? STATUS_OK : now.real->linear(device, args, error);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Reached once a prefill has stored everything, and before anyone counts. */
static enum status synchronize(struct device *device, struct error *error)
{
    uint64_t held = ledger_counts(now.bench->ledger).live[LEDGER_KV];
    enum status status = now.real->synchronize(device, error);
    if (status == STATUS_OK && held && now.stage.left_bytes) {
        if (now.left_count == MOST_LEFT)
            return error_set(error, STATUS_DEVICE, "the stage is full");
        status = ledger_alloc(now.bench->ledger, now.stage.left_tag, now.stage.left_bytes, "what a test leaves behind",
                              &now.left[now.left_count], error);
        now.left_count += status == STATUS_OK;
    }
    if (held && held == now.stage.doubled_at_kv_bytes && !now.layers) {
        now.layers = now.bench->config.num_hidden_layers;
        now.bench->config.num_hidden_layers *= 2;
        now.looks = 0;
    }
    return status;
}

static void undouble(void)
{
    if (now.layers)
        now.bench->config.num_hidden_layers = now.layers;
    now.layers = 0;
}

/* Little is free, so that the buffers of ceilings are small. */
static enum status memory(struct device *device, struct device_memory *memory, struct error *error)
{
    (void)device;
    (void)error;
    if (now.layers && ++now.looks == 2) /* the first looked at the doubled row, this one begins the next */
        undouble();
    double kv = (double)ledger_counts(now.bench->ledger).live[LEDGER_KV];
    *memory = (struct device_memory){.free_bytes = 8 << 20, .process_known = now.stage.driver_share >= 0};
    if (memory->process_known)
        memory->process_bytes = process_bytes + (uint64_t)(now.stage.driver_share * kv);
    return STATUS_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

static enum status run(struct bench *bench, struct error *error)
{
    struct device *device = bench->device;
    if (!device)
        return now.experiment->run(bench, error);
    now.bench = bench;
    now.real = device->ops;
    now.ops = *device->ops;
    now.ops.event_create = event_create;
    now.ops.event_destroy = event_destroy;
    now.ops.event_record = event_record;
    now.ops.event_elapsed_ms = event_elapsed_ms;
    now.ops.embed = embed;
    now.ops.attention = attention;
    now.ops.read_bytes = read_bytes;
    now.ops.linear = linear;
    now.ops.synchronize = synchronize;
    now.ops.memory = memory;
    device->ops = &now.ops;
    device->info.l2_bytes = 1 << 16;
    enum status status = now.experiment->run(bench, error);
    undouble();
    for (size_t i = 0; i < now.left_count; i++)
        ledger_release(bench->ledger, now.left[i]);
    device->ops = now.real;
    return status;
}

/* Sends one of stdout and stderr to a file; returns what it was. */
static int redirect(int descriptor, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", place_folder(), name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fflush(descriptor == STDOUT_FILENO ? stdout : stderr);
    int older = dup(descriptor);
    assert_true(older >= 0 && dup2(fileno(file), descriptor) == descriptor);
    fclose(file);
    return older;
}

static void restore(int descriptor, int older)
{
    fflush(descriptor == STDOUT_FILENO ? stdout : stderr);
    assert_int_equal(dup2(older, descriptor), descriptor);
    close(older);
}

static int run_words(int argc, char **argv, const struct stage *stage)
{
    memset(&now, 0, sizeof now);
    now.stage = *stage;
    now.stage.read_gbps = stage->read_gbps > 0 ? stage->read_gbps : 1.0;
    now.experiment = experiment_find(argv[0]);
    assert_non_null(now.experiment);
    struct experiment staged = *now.experiment;
    staged.run = run;
    return bench_main(&staged, argc - 1, argv + 1);
}

/* Splits `line` at spaces, adds what it does not say; text [size] holds the words. */
static int split(const char *line, char *text, size_t size, char **argv)
{
    int argc = 0, length = snprintf(text, size, "%s", line);
    if (!strstr(line, "--out "))
        length += snprintf(text + length, size - (size_t)length, " --device cpu --out %s/out", place_folder());
    if (!strstr(line, "--model ") && strncmp(line, "formula", 7) != 0)
        length += snprintf(text + length, size - (size_t)length, " --model %s/tiny", place_folder());
    assert_true((size_t)length < size);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) {
        assert_true(argc < MOST_WORDS - 1);
        argv[argc++] = word;
    }
    argv[argc] = NULL;
    return argc;
}

int staged_run(const char *line, const struct stage *stage)
{
    char text[2048], *argv[MOST_WORDS];
    int argc = split(line, text, sizeof text, argv);
    /* bench_main() takes them over for as long as a process lasts. */
    void (*on_interrupt)(int) = signal(SIGINT, SIG_DFL), (*on_end)(int) = signal(SIGTERM, SIG_DFL);
    int out = redirect(STDOUT_FILENO, "stdout"), err = redirect(STDERR_FILENO, "stderr");
    int status = run_words(argc, argv, stage);
    restore(STDOUT_FILENO, out);
    restore(STDERR_FILENO, err);
    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_end);
    return status;
}

char *staged_stdout(void)
{
    return place_file("stdout");
}

char *staged_stderr(void)
{
    return place_file("stderr");
}

void staged_run_interrupted(const char *program, const char *line, int *ended)
{
    char command[4096];
    const char *runner = getenv("KVLAB_RUNNER"); /* qemu-aarch64, say */
    int length = snprintf(
        command, sizeof command, "exec %s '%s' %s --model %s/tiny --device cpu --out %s/out > %s/stdout 2> %s/stderr",
        runner ? runner : "", program, line, place_folder(), place_folder(), place_folder(), place_folder());
    assert_in_range(length, 1, (int)sizeof command - 1);
    *ended = system(command);
}

int staged_child(int argc, char **argv)
{
    signal(SIGINT, SIG_DFL); /* a test runner in the background has it ignored */
    return run_words(argc - 1, argv + 1, &(struct stage){.interrupted = true, .driver_share = 1.0});
}
