/* The scheduler against what is plain: every request's tokens are those that it gets alone, whatever the policy, the
   memory, the blocks, the chunks and the preemptions; nothing is held afterwards; cells, steps and times as worked out
   by hand. */
#include "engine/device_clock.h"
#include "engine/generate.h"
#include "engine/scheduler.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct error error;

/* ---- a clock that advances by one millisecond per step --------------------------------------------------------------
 */

/* A step reads it twice: as it begins and when its tokens are there. */
static enum status read_half_ms(void *context, double *ms, struct error *unused)
{
    (void)unused;
    *ms = *(double *)context += 0.5;
    return STATUS_OK;
}

static enum status skip_to(void *context, double ms, struct error *unused)
{
    (void)unused;
    *(double *)context = fmax(*(double *)context, ms);
    return STATUS_OK;
}

/* ---- a model, a cache, a scheduler and its requests ---- */

enum { MOST_REQUESTS = 16, MOST_ROWS = 128, MOST_LENGTH = 96 };

struct setup {
    struct test_model model;
    struct kv_cache *cache;
    struct scheduler *scheduler;
    double ms;
    struct request requests[MOST_REQUESTS];
    int count;
    /* of all steps */
    int steps, idle_cells, cells, preempted, rows;
};

static void setup_open(struct setup *setup, const struct config *config, const struct kv_options *memory,
                       const struct scheduler_options *options)
{
    const struct model_limits limits = {
        .max_rows = MOST_ROWS, .max_sequences = memory->max_sequences, .max_blocks = MOST_LENGTH + 1};
    *setup = (struct setup){0};
    test_model_open(&setup->model, config, DTYPE_F32, 1, &limits);
    check_ok(kv_open(&setup->cache, setup->model.ledger, config, memory, &error));
    const struct scheduler_clock clock = {.context = &setup->ms, .read = read_half_ms, .wait_until = skip_to};
    check_ok(scheduler_open(&setup->scheduler, &setup->model.model, setup->cache, options, &clock, &error));
}

/* Nothing is held by then: by the ledger, and no block by a sequence. */
static void setup_close(struct setup *setup)
{
    const struct kv_options *memory = kv_get_options(setup->cache);
    if (memory->policy == KV_PAGED)
        assert_int_equal(kv_blocks_free(setup->cache), memory->pool_blocks);
    else
        assert_int_equal(ledger_counts(setup->model.ledger).live[LEDGER_KV], 0);
    scheduler_close(setup->scheduler);
    kv_close(setup->cache);
    assert_int_equal(ledger_counts(setup->model.ledger).live[LEDGER_KV], 0);
    for (int i = 0; i < setup->count; i++)
        free(setup->requests[i].tokens);
    test_model_close(&setup->model);
}

static struct request *add_request(struct setup *setup, int prompt, int output, double arrival_ms)
{
    assert_true(setup->count < MOST_REQUESTS && prompt + output <= MOST_LENGTH);
    struct request *request = &setup->requests[setup->count];
    *request = (struct request){
        .tokens = test_tokens(&setup->model.config, prompt + output, 7 + (uint64_t)setup->count++),
        .prompt_tokens = prompt,
        .output_tokens = output,
        .arrival_ms = arrival_ms,
    };
    return request;
}

static void submit_all(struct setup *setup)
{
    for (int i = 0; i < setup->count; i++)
        check_ok(scheduler_submit(setup->scheduler, &setup->requests[i], &error));
}

static void run_step(struct setup *setup, struct step_record *step)
{
    int slots = 0, rows = 0;
    check_ok(scheduler_step(setup->scheduler, step, &error));
    const int all = kv_get_options(setup->cache)->max_sequences; /* as many slots, in these tests */
    for (int slot = 0; slot < all; slot++) {
        slots += step->slots[slot].rows > 0;
        rows += step->slots[slot].rows;
    }
    assert_int_equal(step->rows, rows);
    assert_true(rows > 0 && step->end_ms > step->start_ms);
    assert_int_equal(step->idle_cells, all - slots);
    setup->steps++;
    setup->rows += rows;
    setup->idle_cells += step->idle_cells;
    setup->cells += all;
    setup->preempted += step->preempted;
}

static void run_all(struct setup *setup)
{
    struct step_record step;
    submit_all(setup);
    while (scheduler_pending(setup->scheduler) > 0)
        run_step(setup, &step);
    check_ok(scheduler_step(setup->scheduler, &step, &error));
    assert_int_equal(step.rows, 0);
}

/* ---- the same tokens as alone ---- */

/* Tokens differ where two logits are equal but for the order of sums: then each token must have the largest logit
   within 1e-4 of its row's norm, after the tokens before it. */
static void check_near_ties(struct setup *setup, struct kv_cache *plain, int sequence, const struct request *request)
{
    struct logits logits;
    int count = request->prompt_tokens + request->output_tokens - 1, vocab = (int)setup->model.config.vocab_size;
    check_ok(logits_init(&logits, setup->model.ledger, &setup->model.config, DTYPE_F32, count, &error));
    check_ok(
        model_prefill(&setup->model.model, plain, sequence, request->tokens, count, LOGITS_ALL, 0, &logits, &error));
    float *all = test_download_logits(&setup->model, &logits, 0, count);
    for (int i = request->prompt_tokens; i <= count; i++) {
        const float *row = all + (size_t)(i - 1) * (size_t)vocab;
        double largest = -INFINITY, norm = 0.0;
        for (int v = 0; v < vocab; v++) {
            largest = fmax(largest, (double)row[v]);
            norm += (double)row[v] * (double)row[v];
        }
        double behind = largest - (double)row[request->tokens[i]];
        if (!(behind <= 1e-4 * sqrt(norm)))
            fail_msg("token %d is %g behind the largest logit", i - request->prompt_tokens, behind);
    }
    free(all);
    logits_free(&logits, setup->model.ledger);
}

static void check_as_alone(struct setup *setup, const struct request *request)
{
    struct kv_cache *plain;
    const struct kv_options exact = {.policy = KV_EXACT, .dtype = DTYPE_F32, .max_sequences = 1};
    const struct generate_options options = {.new_tokens = request->output_tokens, .use_cache = true, .stop_token = -1};
    struct generate_result result;
    int32_t alone[MOST_LENGTH];
    int sequence;
    assert_int_equal(request->produced, request->output_tokens);
    check_ok(kv_open(&plain, setup->model.ledger, &setup->model.config, &exact, &error));
    check_ok(kv_sequence_open(plain, &sequence, &error));
    check_ok(generate(&setup->model.model, plain, sequence, request->tokens, request->prompt_tokens, &options, alone,
                      &result, &error));
    if (memcmp(alone, request->tokens + request->prompt_tokens, (size_t)request->output_tokens * sizeof *alone) != 0) {
        check_ok(kv_truncate(plain, sequence, 0, &error));
        check_near_ties(setup, plain, sequence, request);
    }
    kv_close(plain);
}

static void check_times(const struct request *request)
{
    assert_true(request->admitted_ms >= request->arrival_ms);
    assert_true(request->first_token_ms > request->admitted_ms);
    assert_true(request->finished_ms >= request->first_token_ms + request->output_tokens - 1);
}

/* Prompts that begin alike in part: with their first tokens taken from the first request. */
static void random_requests(struct setup *setup, uint64_t *random)
{
    double arrival_ms = 0.0;
    for (int i = test_random(random, 1, MOST_REQUESTS); i > 0; i--) {
        arrival_ms += test_random(random, 0, 2) ? 0 : test_random(random, 0, 30);
        struct request *request =
            add_request(setup, test_random(random, 1, 40), test_random(random, 1, 40), arrival_ms);
        int alike = test_random(random, 0, 1) ? test_random(random, 0, request->prompt_tokens) : 0;
        alike = alike < setup->requests[0].prompt_tokens ? alike : setup->requests[0].prompt_tokens;
        memcpy(request->tokens, setup->requests[0].tokens, (size_t)alike * sizeof *request->tokens);
    }
}

static void random_traces_give_the_tokens_of_single_requests(void **state)
{
    (void)state;
    const char *device = getenv("KVLAB_TEST_DEVICE");
    int rounds = device == NULL || strcmp(device, "cpu") == 0 ? 150 : 8, preemptions = 0, hits = 0;
    uint64_t random = 17;
    for (int round = 0; round < rounds; round++) {
        struct setup setup;
        struct config config = test_random_config(&random);
        int slots = test_random(&random, 1, 6), block_size = test_random(&random, 1, 12);
        int least = (40 + 40 + block_size - 1) / block_size; /* the longest request alone */
        const struct kv_options memory = {
            .policy = test_random(&random, 0, 3) == 0 ? (round % 2 ? KV_EXACT : KV_RESERVED) : KV_PAGED,
            .dtype = DTYPE_F32,
            .max_sequences = slots,
            .max_tokens = MOST_LENGTH,
            .block_size = block_size,
            .pool_blocks = least + test_random(&random, 0, least),
        };
        struct kv_options with_prefix = memory;
        with_prefix.prefix_cache = memory.policy == KV_PAGED && test_random(&random, 0, 1);
        const struct scheduler_options options = {
            .policy = test_random(&random, 0, 3) == 0 ? SCHEDULE_STATIC : SCHEDULE_CONTINUOUS,
            .admission = round % 3 == 2 ? ADMIT_WHOLE : ADMIT_KNOWN,
            .slots = slots,
            .tokens_per_step = test_random(&random, slots, test_random(&random, 0, 1) ? 3 * slots : MOST_ROWS),
        };
        setup_open(&setup, &config, &with_prefix, &options);
        random_requests(&setup, &random);
        run_all(&setup);
        for (int i = 0; i < setup.count; i++) {
            check_as_alone(&setup, &setup.requests[i]);
            check_times(&setup.requests[i]);
            assert_true(options.admission == ADMIT_KNOWN || setup.requests[i].preemptions == 0);
            preemptions += setup.requests[i].preemptions;
            hits += setup.requests[i].hit_tokens;
        }
        setup_close(&setup);
    }
    assert_true(preemptions > rounds / 4);
    assert_true(hits > rounds);
}

/* ---- by hand ---- */

static const struct config small = {
    .name = "small",
    .family = FAMILY_LLAMA,
    .vocab_size = 50,
    .hidden_size = 32,
    .intermediate_size = 32,
    .num_hidden_layers = 1,
    .num_attention_heads = 2,
    .num_key_value_heads = 1,
    .head_dim = 16,
    .max_position_embeddings = 4096,
    .rms_norm_eps = 1e-6,
    .rope_theta = 10000.0,
    .torch_dtype = DTYPE_F32,
};

static struct kv_options paged(int slots, int block_size, int pool_blocks)
{
    return (struct kv_options){.policy = KV_PAGED,
                               .dtype = DTYPE_F32,
                               .max_sequences = slots,
                               .max_tokens = MOST_LENGTH,
                               .block_size = block_size,
                               .pool_blocks = pool_blocks};
}

/* Two slots, outputs of 1, 4, 2, 3. Static: batches of 4 and 3 steps, idle 3 + 1 of 14 cells. Continuous: slot 0 does
   1, then 2, then 3 tokens, slot 1 does 4: 6 steps, idle 2 of 12. */
static void idle_cells_by_hand(void **state)
{
    (void)state;
    static const int outputs[] = {1, 4, 2, 3};
    static const int steps[] = {[SCHEDULE_STATIC] = 7, [SCHEDULE_CONTINUOUS] = 6};
    static const int idle[] = {[SCHEDULE_STATIC] = 4, [SCHEDULE_CONTINUOUS] = 2};
    for (int policy = SCHEDULE_STATIC; policy <= SCHEDULE_CONTINUOUS; policy++) {
        struct setup setup;
        const struct kv_options memory = paged(2, 4, 40);
        const struct scheduler_options options = {
            .policy = (enum schedule_policy)policy, .slots = 2, .tokens_per_step = MOST_ROWS};
        setup_open(&setup, &small, &memory, &options);
        for (int i = 0; i < 4; i++)
            add_request(&setup, 5, outputs[i], 0.0);
        run_all(&setup);
        assert_int_equal(setup.steps, steps[policy]);
        assert_int_equal(setup.idle_cells, idle[policy]);
        assert_int_equal(setup.rows, 4 * 5 + 10 - 4);
        setup_close(&setup);
    }
}

/* A prompt of 20 tokens arrives beside one that decodes, at 8 tokens a step: 7 of them beside each decode row. */
static void a_long_prompt_goes_in_chunks_beside_decoding(void **state)
{
    (void)state;
    struct setup setup;
    struct step_record step;
    const struct kv_options memory = paged(2, 4, 40);
    const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 2, .tokens_per_step = 8};
    setup_open(&setup, &small, &memory, &options);
    add_request(&setup, 4, 10, 0.0);
    add_request(&setup, 20, 2, 1.0);
    submit_all(&setup);
    run_step(&setup, &step);
    assert_int_equal(step.slots[0].rows, 4);
    assert_true(step.slots[0].chose && step.slots[1].request == NULL);
    static const int rows[] = {7, 7, 6, 1};
    for (int i = 0; i < 4; i++) {
        run_step(&setup, &step);
        assert_int_equal(step.slots[0].rows, 1);
        assert_int_equal(step.slots[1].rows, rows[i]);
        assert_true(step.slots[0].chose);
        assert_int_equal(step.slots[1].chose, i >= 2);
    }
    assert_int_equal(setup.requests[1].produced, 2);
    while (scheduler_pending(setup.scheduler) > 0)
        run_step(&setup, &step);
    setup_close(&setup);
}

/* 4 blocks of 4. Two prompts of 7 take 2 blocks each. When both need position 9, the second gives way; alone, the first
   goes on; then the second computes its 7 + 2 tokens again. */
static void the_latest_gives_way_and_computes_again(void **state)
{
    (void)state;
    struct setup setup;
    struct step_record step;
    const struct kv_options memory = paged(2, 4, 4);
    const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 2, .tokens_per_step = MOST_ROWS};
    setup_open(&setup, &small, &memory, &options);
    add_request(&setup, 7, 6, 0.0);
    add_request(&setup, 7, 6, 0.0);
    add_request(&setup, 7, 1, 0.0); /* waits for both: first come, first served */
    submit_all(&setup);
    run_step(&setup, &step); /* stores 7 */
    assert_int_equal(step.admitted, 2);
    assert_int_equal(step.kv_blocks, 4);
    run_step(&setup, &step); /* stores the 8th */
    run_step(&setup, &step); /* the 9th needs a block */
    assert_int_equal(step.preempted, 1);
    assert_int_equal(step.kv_blocks, 3);
    assert_true(step.slots[1].request == NULL);
    while (setup.requests[0].produced < 6)
        run_step(&setup, &step);
    assert_int_equal(setup.requests[1].produced, 2);
    run_step(&setup, &step);
    assert_int_equal(step.rows, 9);
    assert_int_equal(setup.requests[2].produced, 0);
    while (scheduler_pending(setup.scheduler) > 0)
        run_step(&setup, &step);
    assert_int_equal(setup.requests[0].preemptions, 0);
    assert_int_equal(setup.requests[1].preemptions, 1);
    assert_true(setup.requests[1].admitted_ms == setup.requests[0].admitted_ms);
    check_as_alone(&setup, &setup.requests[0]);
    check_as_alone(&setup, &setup.requests[1]);
    setup_close(&setup);
}

/* The same with room for all 7 + 6 - 1 positions or none: 3 of the 4 blocks each, so that one runs after the other and
   nobody gives way. */
static void admitted_as_a_whole_nobody_gives_way(void **state)
{
    (void)state;
    struct setup setup;
    struct step_record step;
    const struct kv_options memory = paged(2, 4, 4);
    const struct scheduler_options options = {
        .policy = SCHEDULE_CONTINUOUS, .admission = ADMIT_WHOLE, .slots = 2, .tokens_per_step = MOST_ROWS};
    setup_open(&setup, &small, &memory, &options);
    add_request(&setup, 7, 6, 0.0);
    add_request(&setup, 7, 6, 0.0);
    submit_all(&setup);
    for (int i = 0; i < 12; i++) {
        run_step(&setup, &step);
        assert_int_equal(step.slots_in_use, 1);
        assert_int_equal(step.kv_blocks, 3);
    }
    assert_int_equal(setup.requests[1].produced, 6);
    assert_int_equal(setup.preempted, 0);
    setup_close(&setup);
}

static enum status no_memory(struct device *device, size_t bytes, void **memory, struct error *failure)
{
    (void)device;
    *memory = NULL;
    return error_set(failure, STATUS_DEVICE, "no %zu bytes here", bytes);
}

/* What the device refuses below the budget is no want of room that another request could end: it is reported at once,
   while the first one still runs. */
static void a_refusal_by_the_device_is_an_error(void **state)
{
    (void)state;
    struct setup setup;
    struct step_record step;
    const struct kv_options memory = {/* 1.3 MB a tensor: not from what the ledger holds already */
                                      .policy = KV_RESERVED,
                                      .dtype = DTYPE_F32,
                                      .max_sequences = 2,
                                      .max_tokens = 20000};
    const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 2, .tokens_per_step = MOST_ROWS};
    setup_open(&setup, &small, &memory, &options);
    add_request(&setup, 5, 8, 0.0);
    add_request(&setup, 5, 8, 1.0);
    submit_all(&setup);
    run_step(&setup, &step);
    const struct device_ops *whole = setup.model.device->ops;
    struct device_ops broken = *whole;
    broken.alloc = no_memory;
    setup.model.device->ops = &broken;
    enum status status = scheduler_step(setup.scheduler, &step, &error);
    if (status == STATUS_OK) /* the second has arrived by the end of the second step at the latest */
        status = scheduler_step(setup.scheduler, &step, &error);
    setup.model.device->ops = whole;
    assert_int_equal(status, STATUS_DEVICE);
    assert_non_null(strstr(error.message, "bytes here"));
    assert_null(strstr(error.message, "even alone"));
    while (scheduler_pending(setup.scheduler) > 0)
        run_step(&setup, &step);
    setup_close(&setup);
}

/* Nobody is there until 100 ms: that time is skipped, and is no queue time. The second arrives during the first's only
   step and waits for its end; the third has a slot at once. */
static void times_and_queueing_by_hand(void **state)
{
    (void)state;
    struct setup setup;
    const struct kv_options memory = paged(1, 4, 40);
    const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 1, .tokens_per_step = MOST_ROWS};
    setup_open(&setup, &small, &memory, &options);
    add_request(&setup, 3, 2, 100.0);
    add_request(&setup, 3, 1, 101.25);
    add_request(&setup, 3, 1, 200.0);
    run_all(&setup);
    /* read at 0.5, skipped to 100, read at 100.5: begins; tokens at 101, 102 (the step between begins at 101.5) */
    const struct request *r = setup.requests;
    assert_true(r[0].admitted_ms == 100.5 && r[0].first_token_ms == 101.0 && r[0].finished_ms == 102.0);
    assert_true(r[1].admitted_ms == 102.5 && r[1].first_token_ms == 103.0 && r[1].finished_ms == 103.0);
    assert_true(r[2].admitted_ms == 200.5 && r[2].first_token_ms == 201.0);
    setup_close(&setup);
}

static void the_prefix_cache_spares_the_prompt(void **state)
{
    (void)state;
    struct setup setup;
    struct kv_options memory = paged(1, 4, 40);
    memory.prefix_cache = true;
    const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 1, .tokens_per_step = MOST_ROWS};
    setup_open(&setup, &small, &memory, &options);
    add_request(&setup, 18, 3, 0.0);
    memcpy(add_request(&setup, 18, 3, 0.0)->tokens, setup.requests[0].tokens, 18 * sizeof(int32_t));
    run_all(&setup);
    assert_int_equal(setup.requests[0].hit_tokens, 0);
    assert_int_equal(setup.requests[1].hit_tokens, 16);
    assert_int_equal(setup.rows, 18 + 2 + 2 + 2);
    check_as_alone(&setup, &setup.requests[1]);
    setup_close(&setup);
}

/* ---- refusals ---- */

static void requests_that_can_never_run_are_refused(void **state)
{
    (void)state;
    struct setup setup;
    const struct kv_options memory = paged(2, 4, 5);
    const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 2, .tokens_per_step = 16};
    setup_open(&setup, &small, &memory, &options);
    struct request *fits = add_request(&setup, 11, 10, 0.0), *large = add_request(&setup, 11, 11, 0.0);
    check_ok(scheduler_submit(setup.scheduler, fits, &error)); /* 20 positions, all 5 blocks */
    assert_int_equal(scheduler_submit(setup.scheduler, large, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "5 blocks of 4"));
    struct request long_one = {.tokens = fits->tokens, .prompt_tokens = MOST_LENGTH, .output_tokens = 2};
    assert_int_equal(scheduler_submit(setup.scheduler, &long_one, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "at most 96"));
    struct step_record step;
    while (scheduler_pending(setup.scheduler) > 0)
        run_step(&setup, &step);
    setup_close(&setup);
}

/* Reserved sequences under a budget that holds one of them: two slots, but one request at a time. Under one that holds
   none, a clear end. */
static void the_budget_admits_and_refuses(void **state)
{
    (void)state;
    enum { SEQUENCE_BYTES = 2 * 16 * 4 * 40 };
    for (int fits = 0; fits <= 1; fits++) {
        struct ledger *ledger;
        struct kv_cache *cache;
        struct scheduler *scheduler;
        struct weights weights = {0};
        struct model model;
        struct device *device = test_device_open(1);
        const struct model_limits limits = {.max_rows = 16, .max_sequences = 2, .max_blocks = 1};
        const struct kv_options memory = {
            .policy = KV_RESERVED, .dtype = DTYPE_F32, .max_sequences = 2, .max_tokens = 40};
        const struct scheduler_options options = {.policy = SCHEDULE_CONTINUOUS, .slots = 2, .tokens_per_step = 16};
        double ms = 0.0;
        const struct scheduler_clock clock = {.context = &ms, .read = read_half_ms, .wait_until = skip_to};
        check_ok(ledger_open(&ledger, device, 0, &error));
        check_ok(weights_synthetic(&weights, ledger, &small, DTYPE_F32, 1, &error));
        check_ok(model_init(&model, ledger, &small, &weights, &limits, DTYPE_F32, &error));
        check_ok(kv_open(&cache, ledger, &small, &memory, &error));
        check_ok(scheduler_open(&scheduler, &model, cache, &options, &clock, &error));
        /* The rest of the memory is somebody else's. */
        void *others;
        uint64_t left = ledger_budget(ledger) - ledger_counts(ledger).live_total;
        check_ok(ledger_adopt(ledger, LEDGER_OTHER, left - SEQUENCE_BYTES - (fits ? SEQUENCE_BYTES / 2 : 0) + !fits,
                              "others", others = &left, &error));
        int32_t *tokens = test_tokens(&small, 40, 1);
        struct request requests[] = {{.tokens = tokens, .prompt_tokens = 5, .output_tokens = 4},
                                     {.tokens = tokens + 20, .prompt_tokens = 5, .output_tokens = 4}};
        for (int i = 0; i < 2; i++)
            check_ok(scheduler_submit(scheduler, &requests[i], &error));
        struct step_record step;
        enum status status = STATUS_OK;
        while (status == STATUS_OK && scheduler_pending(scheduler) > 0) {
            status = scheduler_step(scheduler, &step, &error);
            assert_true(status != STATUS_OK || step.slots_in_use == 1);
        }
        assert_int_equal(status, fits ? STATUS_OK : STATUS_DEVICE);
        if (!fits)
            assert_non_null(strstr(error.message, "does not fit even alone"));
        ledger_release(ledger, others);
        free(tokens);
        scheduler_close(scheduler);
        kv_close(cache);
        model_free(&model);
        ledger_close(ledger);
        device->ops->close(device);
    }
}

static void options_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct scheduler_options wrong[] = {
        {.slots = 0, .tokens_per_step = 8},
        {.slots = 3, .tokens_per_step = 8},
        {.slots = 2, .tokens_per_step = 1},
        {.slots = 2, .tokens_per_step = MOST_ROWS + 1},
    };
    struct setup setup;
    const struct kv_options memory = paged(2, 4, 5);
    const struct scheduler_options right = {.slots = 2, .tokens_per_step = 2};
    setup_open(&setup, &small, &memory, &right);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct scheduler *scheduler;
        const struct scheduler_clock clock = {.context = &setup.ms, .read = read_half_ms, .wait_until = skip_to};
        assert_int_equal(scheduler_open(&scheduler, &setup.model.model, setup.cache, &wrong[i], &clock, &error),
                         STATUS_INPUT);
        assert_null(scheduler);
    }
    setup_close(&setup);
}

/* The device's clock: it does not go back, idle time is skipped or waited through, what is read later is later. */
static void the_device_clock_skips_or_waits(void **state)
{
    (void)state;
    struct device *device = test_device_open(1);
    for (int waits = 0; waits <= 1; waits++) {
        struct device_clock clock;
        double first, later, skipped;
        check_ok(device_clock_open(&clock, device, waits, &error));
        struct scheduler_clock functions = device_clock_functions(&clock);
        check_ok(functions.read(functions.context, &first, &error));
        check_ok(functions.wait_until(functions.context, first - 1.0, &error)); /* past: no effect */
        check_ok(functions.read(functions.context, &later, &error));
        assert_true(later >= first);
        double until = later + (waits ? 2.0 : 1e9);
        do {
            check_ok(functions.wait_until(functions.context, until, &error));
            check_ok(functions.read(functions.context, &skipped, &error));
        } while (skipped < until);
        device_clock_close(&clock);
    }
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_traces_give_the_tokens_of_single_requests),
        cmocka_unit_test(idle_cells_by_hand),
        cmocka_unit_test(a_long_prompt_goes_in_chunks_beside_decoding),
        cmocka_unit_test(the_latest_gives_way_and_computes_again),
        cmocka_unit_test(admitted_as_a_whole_nobody_gives_way),
        cmocka_unit_test(a_refusal_by_the_device_is_an_error),
        cmocka_unit_test(times_and_queueing_by_hand),
        cmocka_unit_test(the_prefix_cache_spares_the_prompt),
        cmocka_unit_test(requests_that_can_never_run_are_refused),
        cmocka_unit_test(the_budget_admits_and_refuses),
        cmocka_unit_test(options_that_do_not_fit_are_refused),
        cmocka_unit_test(the_device_clock_skips_or_waits),
    };
    return cmocka_run_group_tests_name("scheduler", tests, NULL, NULL);
}
