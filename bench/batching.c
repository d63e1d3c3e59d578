/* batching: what does a scheduler gain that refills a slot at once, where requests differ in length?

   Predicted: a static batch runs until its longest request is done, so that the slots of the others stand idle; the
   cells (slot x step) that compute are the output tokens, all others are idle. Continuous batching idles at the end
   only. Steps are worked out from the lengths alone. Measured: the same requests through both policies of one
   scheduler, at equal slots, over equal memory; cells are counted slot by slot as steps pass. */
#include "bench/harness/option_table.h"
#include "bench/harness/timeline.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASSES = 4, CELLS = 4, BLOCK_SIZE = 16, TIMELINE_COLUMNS = 96 };
enum load { LOAD_SAME, LOAD_MIXED };
static const char *const policy_names[] = {[SCHEDULE_STATIC] = "static", [SCHEDULE_CONTINUOUS] = "continuous"};
static const char *const load_names[] = {[LOAD_SAME] = "same", [LOAD_MIXED] = "mixed"};

static const struct column columns[] = {
    {"policy", COLUMN_TEXT, 0, true,
     "static: a batch starts together and waits for its longest; continuous: a free slot "
     "is refilled at the next step."},
    {"slots", COLUMN_INT, 0, true, "Requests in the batch at once."},
    {"load", COLUMN_TEXT, 0, true, "same: all outputs have one length; mixed: four lengths, in turn. Equal totals."},
    {"requests", COLUMN_INT, 0, true, "Requests, all there from the start."},
    {"output_tokens", COLUMN_INT, 0, true, "Tokens chosen for all requests together."},
    {"steps", COLUMN_INT, 0, false, "Forward passes, counted."},
    {"idle_cells_percent", COLUMN_REAL, 2, false,
     "Of all cells (slots x steps) those whose slot put no token through the model, counted at every step."},
    {"tokens_per_s", COLUMN_REAL, 1, false, "output_tokens / time from the first step's begin to the last one's end."},
    {"ttft_ms_p50", COLUMN_REAL, 1, false, "Time to first token, from the start of the run: queue and prefill."},
    {"ttft_ms_p95", COLUMN_REAL, 1, false, "The same, 95 % of requests wait at most so long."},
    {"e2e_ms_p50", COLUMN_REAL, 1, false, "From the start of the run to a request's last token."},
    {"e2e_ms_p95", COLUMN_REAL, 1, false, "The same, 95th percentile."},
    {"predicted_steps", COLUMN_INT, 0, false, "Source formula: from the output lengths and the slots alone."},
    {"predicted_idle_percent", COLUMN_REAL, 2, false, "Source formula: 1 - output tokens / (slots * predicted steps)."},
    {"ttft_ms_p50_class_1", COLUMN_REAL, 1, false, "TTFT, median of the requests with the shortest outputs."},
    {"ttft_ms_p50_class_2", COLUMN_REAL, 1, false, "TTFT, median of the second length; empty if all are the same."},
    {"ttft_ms_p50_class_3", COLUMN_REAL, 1, false, "TTFT, median of the third length."},
    {"ttft_ms_p50_class_4", COLUMN_REAL, 1, false, "TTFT, median of the longest outputs."},
    {"e2e_ms_p50_class_1", COLUMN_REAL, 1, false, "E2E, median of the requests with the shortest outputs."},
    {"e2e_ms_p50_class_2", COLUMN_REAL, 1, false, "E2E, median of the second length; empty if all are the same."},
    {"e2e_ms_p50_class_3", COLUMN_REAL, 1, false, "E2E, median of the third length."},
    {"e2e_ms_p50_class_4", COLUMN_REAL, 1, false, "E2E, median of the longest outputs."},
    {"output_equal", COLUMN_INT, 0, false,
     "Requests whose tokens are those that the other policy gave them; empty where the other was not run before. "
     "Batches "
     "of other sizes add up in another order, so that near ties in bf16 may differ."},
    {"tokens_checksum", COLUMN_TEXT, 0, false, "FNV-1a of all requests' tokens, in the order of the requests."},
};
static const struct column timeline_columns[] = {
    {"policy", COLUMN_TEXT, 0, true, "static or continuous."},
    {"load", COLUMN_TEXT, 0, true, "same or mixed."},
    {"request", COLUMN_INT, 0, true, "Number of the request, in the order of the queue."},
    {"slot", COLUMN_INT, 0, false, "The slot that it had."},
    {"output_tokens", COLUMN_INT, 0, false, "Its output."},
    {"first_step", COLUMN_INT, 0, false, "Step in which its prompt was computed; 0 is the run's first."},
    {"last_step", COLUMN_INT, 0, false, "Step that gave its last token."},
    {"first_ms", COLUMN_REAL, 2, false, "When it was admitted, from the start of the run."},
    {"last_ms", COLUMN_REAL, 2, false, "When its last token was there."},
};
enum { MAIN, TIMELINE };
static const struct table tables[] = {
    [MAIN] = {"", true, columns, sizeof columns / sizeof *columns},
    [TIMELINE] = {"_timeline", false, timeline_columns, sizeof timeline_columns / sizeof *timeline_columns},
};

static struct own_options {
    int requests, slots;
    bool timeline;
} own;
static const struct option_row option_rows[] = {
    {"requests", "N", OPTION_INT, offsetof(struct own_options, requests), .minimum = 4, .maximum = 65536,
     .help = "requests, a multiple of 4 (default 64; quick: 16)"},
    {"slots", "N", OPTION_INT, offsetof(struct own_options, slots), .minimum = 1, .maximum = 1024,
     .help = "requests in the batch at once (default 16; quick: 4)"},
    {"timeline", NULL, OPTION_FLAG, offsetof(struct own_options, timeline),
     .help = "print who had which slot, step by step, on stderr"},
    {0},
};
static const struct option_set own_set = {option_rows, &own};

/* The lengths of the lesson: a prompt of 128, outputs of 32, 64, 128 and 512 in turn, or of their mean, 184. */
struct plan {
    int requests, slots, prompt, mixed[CLASSES], same;
    int32_t *tokens; /* [requests][prompt] */
};

/* What one run of one policy over one load left behind, request by request. */
struct cell {
    enum schedule_policy policy;
    enum load load;
    bool measured;      /* kept by --resume */
    int32_t *chosen;    /* [total]: all requests' tokens; NULL until it ran */
    struct span *spans; /* [requests] */
    char *letters;      /* [requests] */
};

static int output_of(const struct plan *plan, enum load load, int request)
{
    return load == LOAD_SAME ? plan->same : plan->mixed[request % CLASSES];
}

static int64_t output_total(const struct plan *plan)
{
    return (int64_t)plan->requests * plan->same;
}

/* Static: the longest of each batch, one after the other. Continuous: the next request goes where a slot is free first.
   A prompt takes one step, which gives the first token. */
static int64_t predicted_steps(const struct plan *plan, enum schedule_policy policy, enum load load)
{
    int64_t busy_until[1024] = {0}, end = 0;
    for (int r = 0; r < plan->requests; r++) {
        int slot = r % plan->slots;
        if (policy == SCHEDULE_STATIC && slot == 0)
            for (int s = 0; s < plan->slots; s++)
                busy_until[s] = end;
        for (int s = 0; s < plan->slots && policy == SCHEDULE_CONTINUOUS; s++)
            slot = busy_until[s] < busy_until[slot] ? s : slot;
        busy_until[slot] += output_of(plan, load, r);
        end = busy_until[slot] > end ? busy_until[slot] : end;
    }
    return end;
}

static void predict(const struct bench *bench, struct results *results, const void *of, size_t i)
{
    (void)bench;
    const struct plan *plan = of;
    enum schedule_policy policy = i % 2 ? SCHEDULE_CONTINUOUS : SCHEDULE_STATIC;
    enum load load = i / 2 ? LOAD_MIXED : LOAD_SAME;
    int64_t steps = predicted_steps(plan, policy, load);
    results_set_text(results, "policy", policy_names[policy]);
    results_set_text(results, "load", load_names[load]);
    results_set_int(results, "slots", plan->slots);
    results_set_int(results, "requests", plan->requests);
    results_set_int(results, "output_tokens", output_total(plan));
    results_set_int(results, "predicted_steps", steps);
    results_set_real(results, "predicted_idle_percent",
                     100.0 - 100.0 * (double)output_total(plan) / (double)(steps * plan->slots));
}

/* ---- measuring ---- */

static struct kv_options memory_of(const struct bench *bench, const struct plan *plan)
{
    int most = plan->prompt + plan->mixed[CLASSES - 1];
    most = most > plan->prompt + plan->same ? most : plan->prompt + plan->same;
    return (struct kv_options){
        .policy = KV_PAGED,
        .dtype = bench->kv_dtype,
        .max_sequences = plan->slots,
        .max_tokens = most,
        .block_size = BLOCK_SIZE,
        .pool_blocks = plan->slots * ((most + BLOCK_SIZE - 1) / BLOCK_SIZE), /* nobody has to give way */
    };
}

static enum status open_cell(struct serving *serving, struct bench *bench, struct model *model, const struct plan *plan,
                             const struct cell *cell, int longest_output, struct error *error)
{
    const struct kv_options memory = memory_of(bench, plan);
    const struct scheduler_options options = {
        .policy = cell->policy, .slots = plan->slots, .tokens_per_step = plan->slots * plan->prompt};
    if (serving_init(serving, bench, model, &memory, &options, (size_t)plan->requests, error) != STATUS_OK)
        return error->status;
    for (int r = 0; r < plan->requests; r++) {
        int output = output_of(plan, cell->load, r);
        output = output < longest_output ? output : longest_output;
        if (serving_add(serving, plan->tokens + (size_t)r * (size_t)plan->prompt, plan->prompt, output, 0.0, error) !=
            STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

static enum status run_cell(struct serving *serving, struct cell *cell, double *start_ms, double *end_ms,
                            struct error *error)
{
    while (scheduler_pending(serving->scheduler) > 0) {
        struct step_record step;
        int at = (int)serving->steps;
        if (serving_step(serving, &step, error) != STATUS_OK)
            return error->status;
        *start_ms = at == 0 ? step.start_ms : *start_ms;
        *end_ms = step.end_ms;
        timeline_note(cell->spans, serving, &step, at);
    }
    return STATUS_OK;
}

static enum status keep_tokens(const struct serving *serving, const struct plan *plan, struct cell *cell,
                               struct error *error)
{
    cell->chosen = calloc((size_t)output_total(plan), sizeof *cell->chosen);
    if (cell->chosen == NULL)
        return error_set(error, STATUS_DEVICE, "batching: out of host memory");
    size_t at = 0;
    for (size_t r = 0; r < serving->count; r++) {
        const struct request *request = &serving->requests[r];
        memcpy(cell->chosen + at, request->tokens + request->prompt_tokens,
               (size_t)request->output_tokens * sizeof *cell->chosen);
        at += (size_t)request->output_tokens;
    }
    return STATUS_OK;
}

static int equal_requests(const struct plan *plan, const struct cell *cell, const struct cell *other)
{
    size_t at = 0;
    int equal = 0;
    for (int r = 0; r < plan->requests; r++) {
        size_t count = (size_t)output_of(plan, cell->load, r);
        equal += memcmp(cell->chosen + at, other->chosen + at, count * sizeof *cell->chosen) == 0;
        at += count;
    }
    return equal;
}

static void record_classes(struct results *results, struct serving *serving, const struct plan *plan,
                           const struct cell *cell)
{
    int classes = cell->load == LOAD_SAME ? 1 : CLASSES;
    for (int c = 0; c < classes; c++) {
        char name[64];
        int output = output_of(plan, cell->load, c);
        snprintf(name, sizeof name, "ttft_ms_p50_class_%d", c + 1);
        results_set_real(results, name, serving_quantile(serving, request_ttft_ms, output, 0.5));
        snprintf(name, sizeof name, "e2e_ms_p50_class_%d", c + 1);
        results_set_real(results, name, serving_quantile(serving, request_e2e_ms, output, 0.5));
    }
}

static enum status record(const struct bench *bench, struct results *results, struct serving *serving,
                          const struct plan *plan, const struct cell *cells, size_t i, double ms, struct error *error)
{
    const struct cell *cell = &cells[i], *other = &cells[i ^ 1];
    char checksum[32];
    snprintf(checksum, sizeof checksum, "%016" PRIx64,
             bench_checksum(cell->chosen, (size_t)output_total(plan) * sizeof *cell->chosen));
    predict(bench, results, plan, i);
    results_set_int(results, "steps", serving->steps);
    results_set_real(results, "idle_cells_percent", 100.0 * (double)serving->idle_cells / (double)serving->cells);
    results_set_real(results, "tokens_per_s", (double)output_total(plan) / ms * 1e3);
    results_set_real(results, "ttft_ms_p50", serving_quantile(serving, request_ttft_ms, 0, 0.5));
    results_set_real(results, "ttft_ms_p95", serving_quantile(serving, request_ttft_ms, 0, 0.95));
    results_set_real(results, "e2e_ms_p50", serving_quantile(serving, request_e2e_ms, 0, 0.5));
    results_set_real(results, "e2e_ms_p95", serving_quantile(serving, request_e2e_ms, 0, 0.95));
    record_classes(results, serving, plan, cell);
    if (other->chosen != NULL)
        results_set_int(results, "output_equal", equal_requests(plan, cell, other));
    results_set_text(results, "tokens_checksum", checksum);
    return results_end_row(results, error);
}

static enum status record_timeline(struct results *timeline, const struct serving *serving, const struct cell *cell,
                                   double start_ms, struct error *error)
{
    for (size_t r = 0; r < serving->count; r++) {
        const struct request *request = &serving->requests[r];
        results_set_text(timeline, "policy", policy_names[cell->policy]);
        results_set_text(timeline, "load", load_names[cell->load]);
        results_set_int(timeline, "request", (int64_t)r);
        results_set_int(timeline, "slot", cell->spans[r].slot);
        results_set_int(timeline, "output_tokens", request->output_tokens);
        results_set_int(timeline, "first_step", cell->spans[r].first_step);
        results_set_int(timeline, "last_step", cell->spans[r].first_step + cell->spans[r].steps - 1);
        results_set_real(timeline, "first_ms", request->admitted_ms - start_ms);
        results_set_real(timeline, "last_ms", request->finished_ms - start_ms);
        if (results_end_row(timeline, error) != STATUS_OK)
            return error->status;
    }
    return STATUS_OK;
}

static void print_timeline(const struct plan *plan, const struct cell *cell, int64_t steps)
{
    int classes = cell->load == LOAD_SAME ? 1 : CLASSES;
    fprintf(stderr, "\n%s, %s: %" PRId64 " steps; outputs of", policy_names[cell->policy], load_names[cell->load],
            steps);
    for (int c = 0; c < classes; c++)
        fprintf(stderr, "%s %c %d", c > 0 ? "," : "", 'a' + c, output_of(plan, cell->load, c));
    fprintf(stderr, " tokens; . idle\n");
    for (int r = 0; r < plan->requests; r++)
        cell->letters[r] = (char)('a' + r % classes);
    timeline_print(cell->spans, cell->letters, plan->requests, plan->slots, steps, TIMELINE_COLUMNS);
}

static enum status measure_cell(struct bench *bench, struct model *model, struct results *results,
                                struct results *timeline, const struct plan *plan, struct cell *cells, size_t i,
                                struct error *error)
{
    struct serving serving;
    struct cell *cell = &cells[i];
    double start_ms = 0.0, end_ms = 0.0;
    enum status status = open_cell(&serving, bench, model, plan, cell, INT32_MAX, error);
    if (status == STATUS_OK)
        status = run_cell(&serving, cell, &start_ms, &end_ms, error);
    if (status == STATUS_OK)
        status = keep_tokens(&serving, plan, cell, error);
    if (status == STATUS_OK)
        status = record(bench, results, &serving, plan, cells, i, end_ms - start_ms, error);
    if (status == STATUS_OK)
        status = record_timeline(timeline, &serving, cell, start_ms, error);
    if (status == STATUS_OK && own.timeline)
        print_timeline(plan, cell, serving.steps);
    serving_free(&serving);
    return status;
}

/* Short outputs, so that every number of rows has been through the model once before times count. */
static enum status warm_up(struct bench *bench, struct model *model, const struct plan *plan, struct error *error)
{
    struct serving serving;
    struct plan first = *plan;
    const struct cell cell = {.policy = SCHEDULE_STATIC, .load = LOAD_MIXED};
    first.requests = plan->requests < plan->slots ? plan->requests : plan->slots;
    enum status status = open_cell(&serving, bench, model, &first, &cell, 4, error);
    if (status == STATUS_OK)
        status = serving_run(&serving, error);
    serving_free(&serving);
    return status;
}

static enum status measure(struct bench *bench, struct results *results, const struct plan *plan, struct cell *cells,
                           struct error *error)
{
    struct model model;
    struct results *timeline;
    const struct kv_options memory = memory_of(bench, plan);
    const struct model_limits limits = {.max_rows = plan->slots * plan->prompt,
                                        .max_sequences = plan->slots,
                                        .max_blocks = (memory.max_tokens + BLOCK_SIZE - 1) / BLOCK_SIZE};
    const struct bench_need need = {.kv_bytes = serving_kv_bytes(bench, &memory),
                                    .logits_bytes = formula_logits_bytes(&bench->config, bench->dtype, plan->slots)};
    if (results_open(&timeline, bench, &tables[TIMELINE], error) != STATUS_OK ||
        bench_open_model(bench, &limits, &need, &model, error) != STATUS_OK)
        return error->status;
    results_file_only(timeline);
    double work = 0.0;
    for (size_t i = 0; i < CELLS; i++)
        work += cells[i].measured ? 0.0 : (double)predicted_steps(plan, cells[i].policy, cells[i].load);
    enum status status = warm_up(bench, &model, plan, error);
    progress_start(bench, work);
    for (size_t i = 0; i < CELLS && status == STATUS_OK; i++) {
        if (cells[i].measured)
            continue;
        progress_step(bench, (double)predicted_steps(plan, cells[i].policy, cells[i].load), "%s batching, %s lengths",
                      policy_names[cells[i].policy], load_names[cells[i].load]);
        status = measure_cell(bench, &model, results, timeline, plan, cells, i, error);
    }
    progress_end(bench);
    model_free(&model);
    return status;
}

/* ---- the experiment ---- */

static bool row_is(const struct results *results, size_t row, const struct plan *plan, const struct cell *cell)
{
    return strcmp(results_text(results, row, "policy"), policy_names[cell->policy]) == 0 &&
           strcmp(results_text(results, row, "load"), load_names[cell->load]) == 0 &&
           results_real(results, row, "slots") == plan->slots &&
           results_real(results, row, "requests") == plan->requests;
}

static void cells_free(struct cell *cells)
{
    for (size_t i = 0; i < CELLS; i++) {
        free(cells[i].chosen);
        free(cells[i].spans);
        free(cells[i].letters);
    }
}

static enum status cells_init(struct cell *cells, const struct plan *plan, const struct results *results,
                              struct error *error)
{
    size_t n = (size_t)plan->requests;
    for (size_t i = 0; i < CELLS; i++) {
        struct cell *cell = &cells[i];
        *cell = (struct cell){
            .policy = i % 2 ? SCHEDULE_CONTINUOUS : SCHEDULE_STATIC,
            .load = i / 2 ? LOAD_MIXED : LOAD_SAME,
            .spans = calloc(n, sizeof *cell->spans),
            .letters = calloc(n, sizeof *cell->letters),
        };
        if (cell->spans == NULL || cell->letters == NULL)
            return error_set(error, STATUS_DEVICE, "batching: out of host memory");
        for (size_t row = 0; row < results_rows(results); row++)
            cell->measured = cell->measured || row_is(results, row, plan, cell);
    }
    return STATUS_OK;
}

/* What is counted must be what arithmetic says, or the scheduler does not do what it should. */
static enum status check_rows(const struct results *results, struct error *error)
{
    for (size_t row = 0; row < results_rows(results); row++)
        if (results_real(results, row, "steps") != results_real(results, row, "predicted_steps"))
            return error_set(error, STATUS_CHECK_FAILED, "batching: %s, %s: %.0f steps counted, %.0f predicted",
                             results_text(results, row, "policy"), results_text(results, row, "load"),
                             results_real(results, row, "steps"), results_real(results, row, "predicted_steps"));
    return STATUS_OK;
}

static enum status plan_init(struct plan *plan, const struct bench *bench, struct error *error)
{
    bool quick = bench->options.quick;
    int scale = quick ? 8 : 1;
    *plan = (struct plan){
        .requests = own.requests ? own.requests
                    : quick      ? 16
                                 : 64,
        .slots = own.slots ? own.slots
                 : quick   ? 4
                           : 16,
        .prompt = 128 / scale,
        .mixed = {32 / scale, 64 / scale, 128 / scale, 512 / scale},
        .same = 184 / scale,
    };
    if (plan->requests % CLASSES != 0)
        return error_set(error, STATUS_INPUT, "--requests %d: must be a multiple of %d, one of each length",
                         plan->requests, CLASSES);
    plan->tokens = bench_tokens(bench, (int64_t)plan->requests * plan->prompt, 0);
    return plan->tokens != NULL ? STATUS_OK : error_set(error, STATUS_DEVICE, "batching: out of host memory");
}

static enum status run(struct bench *bench, struct error *error)
{
    struct results *results;
    struct plan plan;
    struct cell cells[CELLS] = {0};
    if (plan_init(&plan, bench, error) != STATUS_OK)
        return error->status;
    enum status status = results_open(&results, bench, &tables[MAIN], error);
    if (status == STATUS_OK && bench->options.dry_run) {
        status = bench_predict_rows(bench, results, predict, &plan, CELLS, error);
    } else if (status == STATUS_OK) {
        status = cells_init(cells, &plan, results, error);
        bool complete = true;
        for (size_t i = 0; i < CELLS; i++)
            complete = complete && cells[i].measured;
        if (status == STATUS_OK && !complete)
            status = measure(bench, results, &plan, cells, error);
        if (status == STATUS_OK)
            status = check_rows(results, error);
    }
    cells_free(cells);
    free(plan.tokens);
    return status;
}

const struct experiment batching_experiment = {
    .name = "batching",
    .summary = "static against continuous batching at equal slots: idle cells, throughput, who waits",
    .needs_device = true,
    .default_model = "smollm2-135m",
    .own = &own_set,
    .tables = tables,
    .table_count = sizeof tables / sizeof *tables,
    .run = run,
};
