/* <name>.meta.json: what a CSV was made with, so that a number can be trusted, compared and made again. */
#include "bench/harness/option_table.h"
#include "bench/harness/output.h"
#include "bench/version.h"
#include "engine/json_input.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct meta {
    json_t *facts; /* known before the run */
    json_t *notes; /* what the driver and the ceilings add */
};

enum { MAX_META_BYTES = 1 << 20 };

/* The settings that rows must share to stand in one table. */
static const char *const settings[] = {"kvlab",   "model",    "config_hash", "weights",     "weights_hash",
                                       "dtype",   "kv_dtype", "seed",        "device_kind", "device",
                                       "threads", "quick",    "reps",        "budget",      "own_options"};

static void set(json_t *object, const char *key, json_t *value)
{
    json_object_set_new(object, key, value ? value : json_null()); /* text that is not UTF-8 has no JSON */
}

static json_t *load_average(void)
{
    double load[3];
    if (getloadavg(load, 3) != 3)
        return json_null();
    return json_pack("[f, f, f]", load[0], load[1], load[2]);
}

static json_t *date_now(void)
{
    time_t now = time(NULL);
    struct tm utc;
    char text[32];
    if (!gmtime_r(&now, &utc) || !strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc))
        return json_null();
    return json_string(text);
}

/* A value of a "key : value" file of /proc; NULL where it has none. The caller frees. */
static char *proc_value(const char *path, const char *key)
{
    FILE *file = fopen(path, "re");
    char *line = NULL, *value = NULL;
    size_t size = 0;
    while (file && !value && getline(&line, &size, file) > 0) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        value = strdup(colon);
    }
    free(line);
    if (file)
        fclose(file);
    return value;
}

/* The command line so that a shell takes it back. */
static json_t *command_line(const char *experiment, int argc, char **argv)
{
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    if (!stream)
        return NULL;
    fprintf(stream, "kvlab %s%s", experiment_find(experiment) ? "run " : "", experiment);
    for (int i = 0; i < argc; i++) {
        bool plain = argv[i][0] && strspn(argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                   "-_=+,./:@%") == strlen(argv[i]);
        fputs(plain ? " " : " '", stream);
        for (const char *c = argv[i]; *c; c++)
            fprintf(stream, *c == '\'' ? "'\\''" : "%c", *c);
        fputs(plain ? "" : "'", stream);
    }
    if (fclose(stream) != 0)
        return NULL;
    json_t *value = json_string(text);
    free(text);
    return value;
}

static void add_machine(json_t *facts)
{
    struct utsname system;
    char host[256] = "";
    if (gethostname(host, sizeof host - 1) == 0)
        set(facts, "host", json_string(host));
    if (uname(&system) == 0)
        set(facts, "kernel", json_sprintf("%s %s %s", system.sysname, system.release, system.machine));
    char *cpu = proc_value("/proc/cpuinfo", "model name");
    if (cpu)
        set(facts, "cpu", json_string(cpu));
    free(cpu);
    set(facts, "cpus_online", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    char *memory = proc_value("/proc/meminfo", "MemTotal"); /* kB there means KiB */
    if (memory)
        set(facts, "memory_bytes", json_integer(strtoll(memory, NULL, 10) * 1024));
    free(memory);
}

static void add_device(json_t *facts, const struct bench *bench)
{
    const struct device_info *info = &bench->device->info;
    struct device_memory memory;
    struct error ignored;
    set(facts, "device_kind", json_string(info->kind));
    set(facts, "device", json_string(info->name));
    set(facts, "device_features", json_string(info->features));
    set(facts, "device_driver", json_string(info->driver));
    set(facts, "device_memory_bytes", json_integer((json_int_t)info->total_bytes));
    if (bench->device->ops->memory(bench->device, &memory, &ignored) == STATUS_OK)
        set(facts, "device_memory_free_bytes", json_integer((json_int_t)memory.free_bytes));
    set(facts, "threads", json_integer(info->threads));
    set(facts, "budget_bytes", json_integer((json_int_t)ledger_budget(bench->ledger)));
}

enum status meta_open(struct bench *bench, struct error *error)
{
    bench->meta = calloc(1, sizeof *bench->meta);
    json_t *facts = json_object(), *notes = json_object();
    if (!bench->meta || !facts || !notes) {
        json_decref(facts);
        json_decref(notes);
        return error_set(error, STATUS_DEVICE, "out of memory for the meta file");
    }
    *bench->meta = (struct meta){facts, notes};
    set(facts, "kvlab", json_string(KVLAB_VERSION));
    set(facts, "experiment", json_string(bench->experiment->name));
    set(facts, "date", date_now());
    set(facts, "command", command_line(bench->experiment->name, bench->argc, bench->argv));
    if (bench->config.name[0]) {
        set(facts, "model", json_string(bench->config.name));
        set(facts, "config_hash", json_sprintf("%016llx", (unsigned long long)model_config_hash(&bench->config)));
        set(facts, "weights", json_string(bench_weights_name(bench)));
        if (bench->weights_dir[0])
            set(facts, "weights_hash",
                json_sprintf("%016llx", (unsigned long long)model_weights_hash(bench->weights_dir)));
        set(facts, "dtype", json_string(dtype_name(bench->dtype)));
    }
    set(facts, "kv_dtype", json_string(dtype_name(bench->kv_dtype)));
    /* A seed may need 64 bits without a sign, which JSON integers here do not have. */
    set(facts, "seed", json_sprintf("%llu", (unsigned long long)bench->options.seed));
    set(facts, "quick", json_boolean(bench->options.quick));
    set(facts, "reps", json_integer(bench->options.reps));                       /* 0: the experiment's own */
    set(facts, "budget", json_integer((json_int_t)bench->options.budget_bytes)); /* 0: what the device has free */
    if (bench->experiment->own) {
        char text[8192];
        option_set_text(bench->experiment->own, text, sizeof text);
        set(facts, "own_options", json_string(text));
    }
    add_machine(facts);
    if (bench->device)
        add_device(facts, bench);
    set(facts, "load_average_start", load_average());
    return STATUS_OK;
}

void meta_free(struct bench *bench)
{
    if (bench->meta) {
        json_decref(bench->meta->facts);
        json_decref(bench->meta->notes);
    }
    free(bench->meta);
    bench->meta = NULL;
}

enum status meta_write(const struct results *results, struct row_file *file, struct error *error)
{
    const struct meta *meta = results->bench->meta;
    json_t *document = json_deep_copy(meta->facts);
    if (!document)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", results->meta_path);
    set(document, "table", json_string(results->name));
    if (results->closed) /* first written with the first row, when nobody knows how many will come */
        set(document, "rows", json_integer((json_int_t)results->row_count));
    set(document, "rows_kept_by_resume", json_integer((json_int_t)results->kept));
    set(document, "complete", json_boolean(results->complete));
    set(document, "load_average_end", load_average());
    json_object_update_missing(document, meta->notes);
    char *text = json_dumps(document, JSON_INDENT(2) | JSON_REAL_PRECISION(10));
    json_decref(document);
    if (!text)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", results->meta_path);
    enum status status = row_file_create(file, results->meta_path, error);
    if (!status)
        status = row_file_append(file, text, strlen(text), error);
    if (!status)
        status = row_file_append(file, "\n", 1, error);
    free(text);
    return status;
}

static const char *shown(const json_t *value, char *text, size_t size)
{
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_boolean(value))
        return json_is_true(value) ? "true" : "false";
    if (!json_is_integer(value))
        return "not given";
    snprintf(text, size, "%lld", (long long)json_integer_value(value));
    return text;
}

enum status meta_same_settings(const struct bench *bench, const char *meta_path, const char *csv_path,
                               struct error *error)
{
    json_t *older;
    struct error reason;
    if (json_input_file(meta_path, MAX_META_BYTES, &older, &reason) != STATUS_OK)
        return error_set(error, reason.status,
                         "%s: cannot tell what it was made with (%s); leave --resume out to measure anew", csv_path,
                         reason.message);
    enum status status = STATUS_OK;
    for (size_t i = 0; !status && i < sizeof settings / sizeof settings[0]; i++) {
        const json_t *then = json_object_get(older, settings[i]),
                     *now = json_object_get(bench->meta->facts, settings[i]);
        char then_text[32], now_text[32];
        if ((then || now) && !json_equal(then, now))
            status = error_set(error, STATUS_INPUT,
                               "%s was made with %s %s, this run has %s; repeat its settings, or leave --resume out to "
                               "measure anew",
                               csv_path, settings[i], shown(then, then_text, sizeof then_text),
                               shown(now, now_text, sizeof now_text));
    }
    json_decref(older);
    return status;
}

void meta_huge_pages(struct bench *bench)
{
    static const char key[] = "huge_page_bytes";
    if (!bench->meta || !bench->device || bench->device->info.multiprocessors > 0)
        return;
    char *text = proc_value("/proc/self/smaps_rollup", "AnonHugePages");
    if (text) {
        json_int_t bytes = strtoll(text, NULL, 10) * 1024,
                   most = json_integer_value(json_object_get(bench->meta->notes, key));
        meta_int(bench, key, bytes > most ? bytes : most);
        meta_text(bench, "huge_page_source",
                  "AnonHugePages of /proc/self/smaps_rollup: the most seen after a row, or before a batch was freed");
    }
    free(text);
}

void meta_text(struct bench *bench, const char *key, const char *value)
{
    if (bench->meta) /* commands that are no experiment have none */
        set(bench->meta->notes, key, json_string(value));
}

void meta_real(struct bench *bench, const char *key, double value)
{
    if (bench->meta)
        set(bench->meta->notes, key, json_real(value)); /* NULL, so null, for what is not finite */
}

void meta_int(struct bench *bench, const char *key, int64_t value)
{
    if (bench->meta)
        set(bench->meta->notes, key, json_integer(value));
}
