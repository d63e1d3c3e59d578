/* Every experiment in the registry: what it writes keeps to the schema, --resume and Ctrl-C keep what was measured. And
   formula, whose rows need no device. Small models on a staged clock (see tests/staged_run.h). */
#include "tests/staged_run.h"

#include "bench/harness/output.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *program; /* argv[0] */

/* ---- the schema of results -------------------------------------------------------------------------------------- */

/* The columns that each table begins with, under these names and in this order; those of measured experiments after
   model,device,dtype,weights. An experiment may add columns after them. */
static const struct {
    const char *table, *columns;
} schema[] = {
    {"formula", "model,num_hidden_layers,num_attention_heads,num_key_value_heads,head_dim,kv_bytes_per_token,"
                "kv_bytes_per_token_mha,gqa_ratio"},
    {"kv", "prompt_tokens,n_tensors,tensor_shape,kv_formula_bytes,kv_tensor_bytes,kv_ledger_bytes,bytes_per_token,"
           "deviation_percent"},
    {"slope", "context,kv_formula_bytes,kv_tensor_bytes,kv_ledger_bytes,driver_bytes"},
    {"slope_fit", "source,slope_bytes_per_token,formula_bytes_per_token,deviation_percent"},
    {"logits", "context,logits_positions,logits_shape,logits_bytes,kv_bytes,extra_ledger_bytes,unexplained_bytes,"
               "logits_share_percent,extra_over_kv"},
    {"cache", "prompt_tokens,new_tokens,cached_s,uncached_s,time_ratio,cached_positions,uncached_positions,work_ratio"},
    {"tpot", "context,batch,tpot_ms_p10,tpot_ms_p50,tpot_ms_p90,n,weight_bytes,kv_bytes,predicted_ms,effective_gbps,"
             "percent_of_read_ceiling"},
    {"tpot_fit", "batch,slope_ns_per_token,ci95_low,ci95_high,predicted_ns_per_token,resolved"},
    {"anatomy", "moment,weights_bytes,kv_bytes,logits_bytes,workspace_bytes,other_bytes,ledger_bytes,reserved_bytes,"
                "driver_bytes,overhead_bytes"},
    {"roofline", "phase,tokens,flops,bytes,intensity_flop_per_byte,tflops,percent_of_matrix_ceiling,gbps,"
                 "percent_of_read_ceiling,bound"},
    {"phases", "prompt_tokens,ttft_ms,tpot_ms_p50,tpot_ms_p95,prefill_tokens_per_s,decode_tokens_per_s,e2e_ms,"
               "effective_tokens_per_s,peak_ledger_bytes"},
    {"batch", "batch,ttft_ms,tpot_ms,tokens_per_s,tokens_per_s_per_request,kv_bytes,peak_ledger_bytes,"
              "intensity_flop_per_byte,percent_of_matrix_ceiling,percent_of_read_ceiling"},
    {"gqa", "num_key_value_heads,kind,bytes_per_token,tpot_ms_p50,percent_of_read_ceiling"},
    {"capacity", "budget_bytes,context,policy,predicted_sequences,measured_sequences,limit,utilization_percent"},
    {"oom", "budget_bytes,requested_bytes,ledger_bytes,weights_loaded_percent,missing_bytes,message"},
    {"profile", "phase,context,batch,graphs,operation,calls,time_ms,share_percent,bytes,gbps,percent_of_read_ceiling"},
    {"paged", "policy,block_size,requests,used_bytes,allocated_bytes,utilization_percent,internal_waste_percent,"
              "external_waste_percent,max_concurrent"},
    {"batching", "policy,slots,load,requests,output_tokens,steps,idle_cells_percent,tokens_per_s,ttft_ms_p50,"
                 "ttft_ms_p95,e2e_ms_p50,e2e_ms_p95"},
    {"prefix", "prefix_cache,request,prompt_tokens,hit_tokens,prefill_ms,kv_allocated_bytes,output_equal"},
    {"chunked", "chunk_tokens,prompt_tokens,ttft_ms,itl_ms_p50,itl_ms_max,peak_workspace_bytes"},
    {"speculative", "draft,target,draft_tokens,acceptance_rate,tokens_per_target_pass,speedup,output_equal"},
    {"kvquant", "kv_dtype,context,kv_bytes_per_token,bytes_saved_percent,perplexity,perplexity_delta_percent,"
                "max_logit_error,tpot_ms_p50"},
    {"window", "window,context,kv_bytes,kv_bytes_full,tpot_ms_p50,perplexity"},
    {"evict", "policy,budget_tokens,context,kv_bytes,perplexity,perplexity_delta_percent,tpot_ms_p50"},
    {"serve", "load,rate_or_users,requests,ttft_ms_p50,ttft_ms_p99,tpot_ms_p50,e2e_ms_p50,e2e_ms_p95,e2e_ms_p99,"
              "in_flight_first_half,in_flight_second_half,littles_law_error_percent,queue_ms_p50,kv_used_percent_max,"
              "decode_tokens_per_s,effective_tokens_per_s"},
    {"ladder", "step,requests,output_tokens,tokens_per_s,gain_over_previous,gain_over_first,peak_kv_bytes,"
               "output_equal"},
};

static const char *schema_of(const char *table)
{
    for (size_t i = 0; i < COUNT(schema); i++)
        if (strcmp(schema[i].table, table) == 0)
            return schema[i].columns;
    return "";
}

static size_t common_count(const struct table *table)
{
    return table->common ? COMMON_COLUMNS : 0;
}

/* Do all key cells of two rows agree? Tables of two runs have the same columns. */
static bool same_key(const struct table *table, const struct csv_table *a, size_t row_a, const struct csv_table *b,
                     size_t row_b)
{
    size_t common = common_count(table);
    for (size_t i = 0; i < table->column_count; i++)
        if (table->columns[i].key && strcmp(a->cells[row_a][common + i], b->cells[row_b][common + i]) != 0)
            return false;
    return true;
}

static void assert_unique_keys(const char *name, const struct table *table, const struct csv_table *csv)
{
    for (size_t i = 0; i < csv->row_count; i++)
        for (size_t j = i + 1; j < csv->row_count; j++)
            if (same_key(table, csv, i, csv, j))
                fail_msg("%s: rows %zu and %zu have the same key", name, i, j);
}

static void assert_same_keys(const char *name, const struct table *table, const struct csv_table *csv,
                             const struct csv_table *wanted)
{
    assert_unique_keys(name, table, csv);
    if (csv->row_count != wanted->row_count)
        fail_msg("%s: %zu rows instead of %zu", name, csv->row_count, wanted->row_count);
    for (size_t i = 0; i < wanted->row_count; i++) {
        size_t j = 0;
        while (j < csv->row_count && !same_key(table, wanted, i, csv, j))
            j++;
        if (j == csv->row_count)
            fail_msg("%s: nothing for row %zu, %s ...", name, i, wanted->cells[i][common_count(table)]);
    }
}

static void assert_schema(const char *name, const struct table *table, bool needs_device)
{
    char list[1024], wanted[1024];
    struct csv_table csv = place_csv(name);
    size_t common = common_count(table), at = 0;
    assert_int_equal(csv.column_count, common + table->column_count);
    for (size_t i = 0; i < csv.column_count; i++) {
        const struct column *column = i < common ? &common_columns[i] : &table->columns[i - common];
        assert_string_equal(csv.columns[i], column->name);
        if (!column->explain || strlen(column->explain) < 10)
            fail_msg("%s: column %s is not explained", name, column->name);
        assert_true(column->kind == COLUMN_REAL || column->decimals == 0);
    }
    bool measured = needs_device && table->suffix[0] == 0;
    snprintf(list, sizeof list, "%s%s", measured ? "model,device,dtype,weights," : "", schema_of(name));
    snprintf(wanted, sizeof wanted, "%s", list);
    for (char *word = strtok(wanted, ","); word; word = strtok(NULL, ","), at++)
        if (at >= csv.column_count || strcmp(csv.columns[at], word) != 0)
            fail_msg("%s: column %zu is %s, the schema has %s", name, at,
                     at < csv.column_count ? csv.columns[at] : "missing", word);
    assert_true(csv.row_count > 0);
    assert_unique_keys(name, table, &csv);
    csv_table_free(&csv);
}

static void assert_meta(const char *name, const char *experiment, bool complete)
{
    char *text = place_meta(name);
    json_t *meta = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(meta);
    assert_string_equal(json_string_value(json_object_get(meta, "experiment")), experiment);
    assert_string_equal(json_string_value(json_object_get(meta, "table")), name);
    assert_int_equal(json_is_true(json_object_get(meta, "complete")), complete);
    assert_true(json_is_boolean(json_object_get(meta, "complete")));
    json_decref(meta);
    free(text);
}

/* ---- lines to run every experiment with ------------------------------------------------------------------------- */

/* Some rows, and more of them: what --resume goes on from, and to. By --contexts unless something else is swept; the
   longest is in both, since what is reserved may go by it. */
static const struct {
    const char *experiment, *some, *more;
} sweeps[] = {
    {"cache", "--quick --new-tokens 4", "--quick --new-tokens 3,4,6"},
    {"tpot", "--contexts 16,24 --batch 1 --reps 6", "--contexts 8,16,24 --batch 1,2 --reps 6"},
    {"batch", "--contexts 16 --batch 2 --reps 2 --quick", "--contexts 16 --batch 1,2,3 --reps 2 --quick"},
    {"roofline", "--contexts 16 --batch 2 --reps 2 --quick", "--contexts 8,16,24 --batch 2,3 --reps 2 --quick"},
    {"slope", "--contexts 600,900", "--contexts 600,700,900"},
    {"oom", "--budget 50000", "--budget 50000"},
    {"window", "--contexts 24 --window 8 --quick", "--contexts 16,24 --window 8,12 --quick"},
    {"evict", "--contexts 24 --budget-tokens 8 --quick", "--contexts 16,24 --budget-tokens 8,12 --quick"},
    {"profile", "--contexts 16 --batch 2 --reps 2", "--contexts 8,16 --batch 1,2 --reps 2"},
    {"gqa", "--contexts 16 --reps 2 --quick", "--contexts 16 --reps 2 --quick"},
    {"paged", "--quick --block-sizes 16", "--quick --block-sizes 4,16"},
    {"batching", "--quick --requests 8 --slots 2", "--quick --requests 8 --slots 2"},
    {"prefix", "--quick", "--quick"},
    {"chunked", "--quick --chunk-tokens 16", "--quick --chunk-tokens 16,32,64"},
    {"serve", "--quick --users 1 --load-percents 50", "--quick --users 1,4,8 --load-percents 50,150"},
    {"ladder", "--quick", "--quick"},
};

/* The small model as its own draft. */
static const char *sweep_of_speculative(bool more)
{
    static char line[128];
    snprintf(line, sizeof line, "--draft %s/tiny --quick --threads 1 --reps 1 --draft-tokens %s", place_folder(),
             more ? "0,2,3" : "2");
    return line;
}

static const char *sweep(const struct experiment *experiment, bool more)
{
    if (strcmp(experiment->name, "speculative") == 0)
        return sweep_of_speculative(more);
    for (size_t i = 0; i < COUNT(sweeps); i++)
        if (strcmp(sweeps[i].experiment, experiment->name) == 0)
            return more ? sweeps[i].more : sweeps[i].some;
    return more ? "--contexts 8,16,24 --quick" : "--contexts 24 --quick";
}

static void run(const struct experiment *experiment, const char *options, const char *more_options)
{
    char line[256];
    snprintf(line, sizeof line, "%s %s %s", experiment->name, options, more_options);
    int status = staged_run(line, &(struct stage){.driver_share = 1.0});
    if (status != 0) {
        char *text = staged_stderr();
        fail_msg("kvlab run %s: status %d: %s", line, status, text);
    }
}

static void forget(const struct experiment *experiment)
{
    char path[256];
    snprintf(path, sizeof path, "%s/out/%s.csv", place_folder(), experiment->name);
    unlink(path);
}

static void every_table_keeps_to_the_schema(void **state)
{
    (void)state;
    for (const struct experiment *const *at = experiments; *at; at++) {
        const struct experiment *experiment = *at;
        run(experiment, experiment->needs_device ? sweep(experiment, true) : "", "");
        for (size_t t = 0; t < experiment->table_count; t++) {
            char name[64];
            snprintf(name, sizeof name, "%s%s", experiment->name, experiment->tables[t].suffix);
            assert_schema(name, &experiment->tables[t], experiment->needs_device);
            assert_meta(name, experiment->name, true);
        }
    }
}

/* The first `rows` rows are as they were, cell by cell. */
static void assert_kept(const char *name, const struct csv_table *before, const struct csv_table *after)
{
    assert_true(after->row_count >= before->row_count);
    for (size_t row = 0; row < before->row_count; row++)
        for (size_t i = 0; i < before->column_count; i++)
            if (strcmp(after->cells[row][i], before->cells[row][i]) != 0)
                fail_msg("%s: row %zu: %s was %s, is %s", name, row, before->columns[i], before->cells[row][i],
                         after->cells[row][i]);
}

static void resume_measures_what_is_missing(void **state)
{
    (void)state;
    for (const struct experiment *const *at = experiments; *at; at++) {
        const struct experiment *experiment = *at;
        if (!experiment->needs_device)
            continue;
        run(experiment, sweep(experiment, true), "");
        struct csv_table wanted = place_csv(experiment->name);
        run(experiment, sweep(experiment, false), "");
        struct csv_table before = place_csv(experiment->name);
        run(experiment, sweep(experiment, true), "--resume");
        struct csv_table after = place_csv(experiment->name);
        assert_kept(experiment->name, &before, &after);
        assert_same_keys(experiment->name, &experiment->tables[0], &after, &wanted);
        assert_meta(experiment->name, experiment->name, true);
        csv_table_free(&before);
        csv_table_free(&after);
        csv_table_free(&wanted);
    }
}

/* SIGINT arrives in the first pass after a row is written; what has no pass after its first row runs to its end. */
static void interrupted_runs_keep_their_rows(void **state)
{
    (void)state;
    static const char *const must_stop[] = {"kv", "slope", "logits", "cache", "tpot"};
    for (const struct experiment *const *at = experiments; *at; at++) {
        const struct experiment *experiment = *at;
        char line[256];
        int ended;
        bool must = false;
        for (size_t i = 0; i < COUNT(must_stop); i++)
            must = must || strcmp(must_stop[i], experiment->name) == 0;
        if (!experiment->needs_device)
            continue;
        run(experiment, sweep(experiment, true), "");
        struct csv_table wanted = place_csv(experiment->name);
        forget(experiment);
        snprintf(line, sizeof line, "%s %s", experiment->name, sweep(experiment, true));
        staged_run_interrupted(program, line, &ended);
        bool by_signal = WIFSIGNALED(ended) && WTERMSIG(ended) == SIGINT;
        if (!by_signal && (must || !WIFEXITED(ended) || WEXITSTATUS(ended) > 1)) {
            char *text = staged_stderr();
            fail_msg("%s: ended with %x, not by SIGINT: %s", line, (unsigned)ended, text);
        }
        if (by_signal) {
            struct csv_table before = place_csv(experiment->name);
            assert_in_range(before.row_count, 1, wanted.row_count - 1);
            assert_meta(experiment->name, experiment->name, false);
            run(experiment, sweep(experiment, true), "--resume");
            struct csv_table after = place_csv(experiment->name);
            assert_kept(experiment->name, &before, &after);
            assert_same_keys(experiment->name, &experiment->tables[0], &after, &wanted);
            assert_meta(experiment->name, experiment->name, true);
            csv_table_free(&before);
            csv_table_free(&after);
        }
        csv_table_free(&wanted);
    }
}

/* ---- formula ---------------------------------------------------------------------------------------------------- */

/* The lessons' figures, in KiB per token, and how many times sharing saves. */
static void formula_of_published_models(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int kib, kib_mha;
        const char *ratio;
    } known[] = {{"qwen2.5-0.5b", 12, 84, "7.00"}, {"qwen2.5-1.5b", 28, 168, "6.00"},
                 {"qwen2.5-7b", 56, 392, "7.00"},  {"llama-3-8b", 128, 512, "4.00"},
                 {"llama-2-7b", 512, 512, "1.00"}, {"llama-3-70b", 320, 2560, "8.00"}};
    assert_int_equal(staged_run("formula", &(struct stage){0}), 0);
    struct csv_table table = place_csv("formula");
    for (size_t i = 0; i < COUNT(known); i++) {
        size_t row = 0;
        while (row < table.row_count && strcmp(place_text(&table, row, "model"), known[i].model) != 0)
            row++;
        assert_int_equal(place_int(&table, row, "kv_bytes_per_token"), known[i].kib * 1024);
        assert_int_equal(place_int(&table, row, "kv_bytes_per_token_mha"), known[i].kib_mha * 1024);
        assert_string_equal(place_text(&table, row, "gqa_ratio"), known[i].ratio);
        assert_int_equal(place_real(&table, row, "kv_kib_per_token"), known[i].kib);
    }
    csv_table_free(&table);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return staged_child(argc, argv);
    program = argv[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_keeps_to_the_schema),
        cmocka_unit_test(resume_measures_what_is_missing),
        cmocka_unit_test(interrupted_runs_keep_their_rows),
        cmocka_unit_test(formula_of_published_models),
    };
    return cmocka_run_group_tests(tests, place_make, place_remove);
}
