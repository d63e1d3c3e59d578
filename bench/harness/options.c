/* The options that every experiment shares. One row here is all it takes: parsing and --help follow. */
#include "bench/harness/option_table.h"

#include <stdio.h>
#include <string.h>

static const char *const format_choices[] = {"table", "csv", "json", "md", NULL}; /* as enum output_format */

static const char *const graphs_choices[] = {"on", "off", NULL}; /* as graphs_off */

#define FIELD(field) .offset = offsetof(struct options, field)
#define GIVEN(field) .has_given = true, .given_offset = offsetof(struct options, field)

static const struct option_row rows[] = {
    {"model", "NAME", OPTION_TEXT, FIELD(model),
     .help = "a name of `kvlab list models`, a folder with config.json, or a config file"},
    {"device", "NAME", OPTION_TEXT, FIELD(device), .help = "cpu, cuda, cuda:N, or auto (the default)"},
    {"dtype", "TYPE", OPTION_CHOICE, FIELD(dtype), GIVEN(has_dtype), .choices = dtype_choices,
     .help = "type of the weights: f32, f16 or bf16; as published unless given"},
    {"kv-dtype", "TYPE", OPTION_CHOICE, FIELD(kv_dtype), GIVEN(has_kv_dtype), .choices = kv_dtype_choices,
     .help = "type of the KV cache: f32, f16, bf16, fp8 or int8; as --dtype unless given"},
    /* Past what 32 bits hold, bench_main() says how much memory it would take. */
    {"contexts", "LIST", OPTION_LIST, FIELD(contexts), .use = USES_CONTEXTS, .minimum = 1, .maximum = INT64_MAX,
     .help = "tokens: 512,1024 or ranges, 512-8192*2 (factor 2), 128-1024+128 (step 128)"},
    {"batch", "LIST", OPTION_LIST, FIELD(batch), .use = USES_BATCH, .minimum = 1, .maximum = 65536,
     .help = "sequences at a time, a list as for contexts"},
    {"new-tokens", "LIST", OPTION_LIST, FIELD(new_tokens), .use = USES_NEW_TOKENS, .minimum = 1, .maximum = 1 << 24,
     .help = "tokens to generate, a list as for contexts"},
    {"reps", "N", OPTION_INT, FIELD(reps), .use = USES_REPS, .minimum = 1, .maximum = 1000000,
     .help = "repetitions of each measurement"},
    {"threads", "N", OPTION_INT, FIELD(threads), .minimum = 0, .maximum = 4096,
     .help = "CPU threads; 0, the default, takes all that there are"},
    {"graphs", "WHEN", OPTION_CHOICE, FIELD(graphs_off), .choices = graphs_choices,
     .help = "on (the default): decode steps are recorded and replayed where the device can; off: launched one by one"},
    {"seed", "N", OPTION_SEED, FIELD(seed), .help = "of synthetic weights and tokens; 1 unless given"},
    {"budget", "BYTES", OPTION_BYTES, FIELD(budget_bytes),
     .help = "behave as a card with this much memory: 12490457088, 12GB or 12GiB"},
    {"out", "FOLDER", OPTION_TEXT, FIELD(out), .help = "where the CSV files go; results unless given"},
    {"quick", NULL, OPTION_FLAG, FIELD(quick), .help = "small settings and few repetitions: seconds, to see it work"},
    {"resume", NULL, OPTION_FLAG, FIELD(resume), .help = "keep the rows of an interrupted run and measure the rest"},
    {"dry-run", NULL, OPTION_FLAG, FIELD(dry_run),
     .help = "print what would be measured, with its prediction; write nothing"},
    {"samples", "FILE", OPTION_TEXT, FIELD(samples), .use = USES_SAMPLES,
     .help = "keep every raw sample in this CSV file"},
    {"format", "FORMAT", OPTION_CHOICE, FIELD(format), .choices = format_choices,
     .help = "what stdout gets: table (the default), csv, json or md"},
    {"explain", "COLUMN", OPTION_TEXT, FIELD(explain), .help = "say what a column means and how it is taken"},
    {"help", NULL, OPTION_FLAG, FIELD(help), .help = "this text"},
    {0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

enum status options_parse(struct options *options, const struct option_set *own, int argc, char **argv,
                          struct error *error)
{
    *options = (struct options){.seed = 1, .out = "results", .device = "auto"};
    const struct option_set sets[] = {{rows, options}, own ? *own : (struct option_set){0}};
    enum status status = option_sets_parse(sets, sizeof sets / sizeof sets[0], argc, argv, error);
    if (status)
        options_free(options);
    return status;
}

void options_free(struct options *options)
{
    int_list_free(&options->contexts);
    int_list_free(&options->batch);
    int_list_free(&options->new_tokens);
    *options = (struct options){0};
}

void options_print_help(unsigned uses, const struct option_set *own)
{
    struct option_row shown[ROWS];
    size_t count = 0;
    for (size_t i = 0; i < ROWS; i++)
        if (!rows[i].use || (rows[i].use & uses))
            shown[count++] = rows[i];
    if (own) {
        printf("of this experiment alone:\n");
        option_table_help(own->rows);
        printf("of every experiment:\n");
    }
    option_table_help(shown);
}

enum status options_check_used(const struct options *options, unsigned uses, const char *experiment,
                               struct error *error)
{
    unsigned given = (options->contexts.count ? USES_CONTEXTS : 0u) | (options->batch.count ? USES_BATCH : 0u) |
                     (options->new_tokens.count ? USES_NEW_TOKENS : 0u) | (options->reps ? USES_REPS : 0u) |
                     (options->samples ? USES_SAMPLES : 0u);
    const char *wrong = NULL;
    char known[128] = "";
    for (size_t i = 0; i < ROWS; i++) {
        if (!wrong && (rows[i].use & given & ~uses))
            wrong = rows[i].name;
        size_t used = strlen(known);
        if (rows[i].use & uses)
            snprintf(known + used, sizeof known - used, "%s--%s", used ? ", " : "", rows[i].name);
    }
    if (!wrong)
        return STATUS_OK;
    return error_set(error, STATUS_INPUT,
                     "--%s: %s does not use it; of --contexts, --batch, --new-tokens, --reps and --samples it has %s",
                     wrong, experiment, known[0] ? known : "none");
}
