/* Blocks that several sequences hold: forks, copy on write, prompts that begin alike, eviction; and thousands of random
   operations against sequences that are plain lists of tokens. What a position holds is worked out from all tokens up
   to it, as K and V are, so that a block in the wrong place shows. */
#include "engine/kv_cache_parts.h"
#include "tests/support.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 2, WIDTH = 4, SIZE = 4, MOST_TOKENS = 60 };

static struct device *device;
static struct ledger *ledger;
static struct error error;
static const struct config config = {
    .name = "sharing",
    .vocab_size = 10,
    .hidden_size = 8,
    .intermediate_size = 8,
    .num_hidden_layers = LAYERS,
    .num_attention_heads = 2,
    .num_key_value_heads = HEADS,
    .head_dim = WIDTH,
    .max_position_embeddings = 100,
};

static int open_all(void **state)
{
    (void)state;
    device = test_device_open(1);
    return ledger_open(&ledger, device, 64 << 20, &error);
}

static int close_all(void **state)
{
    (void)state;
    assert_int_equal(ledger_counts(ledger).live[LEDGER_KV], 0);
    ledger_close(ledger);
    device->ops->close(device);
    return 0;
}

static struct kv_cache *open_cache(int max_sequences, int blocks)
{
    struct kv_cache *cache;
    struct kv_options options = {
        .policy = KV_PAGED,
        .dtype = DTYPE_BF16,
        .max_sequences = max_sequences,
        .block_size = SIZE,
        .max_tokens = MOST_TOKENS,
        .pool_blocks = blocks,
        .prefix_cache = true,
    };
    check_ok(kv_open(&cache, ledger, &config, &options, &error));
    return cache;
}

/* A sequence as the test knows it. */
struct truth {
    int number; /* in the cache; -1: closed */
    int length;
    int32_t tokens[MOST_TOKENS];
};

/* What the head's first value holds at the last of `count` tokens. */
static uint16_t content(const int32_t *tokens, int count, int layer, int side, int head)
{
    uint32_t hash = (uint32_t)((layer * 2 + side) * 2 + head);
    for (int i = 0; i < count; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * 2654435761u + 1;
    return (uint16_t)(hash >> 8);
}

static uint16_t *value_at(const struct kv_cache *cache, int sequence, int layer, int side, int head, int position)
{
    const int32_t *table;
    kv_block_table(cache, sequence, &table);
    uint16_t *base = side ? kv_layer_values(cache, sequence, layer) : kv_layer_keys(cache, sequence, layer);
    return base + (((int64_t)table[position / SIZE] * HEADS + head) * SIZE + position % SIZE) * WIDTH;
}

/* Stores the tokens that the truth has and the cache has not, as a forward pass does; false: no blocks. */
static bool compute(struct kv_cache *cache, const struct truth *truth)
{
    int held = kv_length(cache, truth->number);
    if (kv_make_room(cache, truth->number, truth->length, &error) != STATUS_OK)
        return false;
    for (int i = 0; i < (truth->length - held) * LAYERS * 2 * HEADS; i++) {
        int position = held + i / (LAYERS * 2 * HEADS), layer = i / (2 * HEADS) % LAYERS, side = i / HEADS % 2;
        uint16_t bits = content(truth->tokens, position + 1, layer, side, i % HEADS);
        uint16_t *to = value_at(cache, truth->number, layer, side, i % HEADS, position);
        check_ok(device->ops->upload(device, to, &bits, sizeof bits, &error));
    }
    kv_advance(cache, truth->number, truth->length - held);
    return true;
}

static void check_contents(const struct kv_cache *cache, const struct truth *truth)
{
    assert_int_equal(kv_length(cache, truth->number), truth->length);
    for (int i = 0; i < truth->length * LAYERS * 2 * HEADS; i++) {
        int position = i / (LAYERS * 2 * HEADS), layer = i / (2 * HEADS) % LAYERS, side = i / HEADS % 2;
        uint16_t bits, *from = value_at(cache, truth->number, layer, side, i % HEADS, position);
        check_ok(device->ops->download(device, &bits, from, sizeof bits, &error));
        assert_int_equal(bits, content(truth->tokens, position + 1, layer, side, i % HEADS));
    }
}

static struct truth truth_of(const char *digits)
{
    struct truth truth = {.number = -1, .length = (int)strlen(digits)};
    for (int i = 0; i < truth.length; i++)
        truth.tokens[i] = digits[i] - '0';
    return truth;
}

/* Opens, computes what was not found, publishes; returns the hit. */
static int run(struct kv_cache *cache, struct truth *truth)
{
    int hit;
    check_ok(kv_sequence_open_with_prefix(cache, truth->tokens, truth->length, &truth->number, &hit, &error));
    assert_true(compute(cache, truth));
    kv_publish(cache, truth->number, truth->tokens);
    check_contents(cache, truth);
    return hit;
}

static void a_fork_copies_on_the_first_write(void **state)
{
    (void)state;
    struct kv_cache *cache = open_cache(3, 8);
    struct truth parent = truth_of("012345"), child = parent;
    run(cache, &parent);
    uint64_t bytes = ledger_counts(ledger).live[LEDGER_KV];
    check_ok(kv_fork(cache, parent.number, &child.number, &error));
    assert_int_equal(kv_blocks_free(cache), 6); /* nothing taken */
    check_contents(cache, &child);
    child.tokens[child.length++] = 9;
    assert_true(compute(cache, &child));
    assert_int_equal(kv_blocks_free(cache), 5); /* the partly filled block */
    parent.tokens[parent.length++] = 8;
    assert_true(compute(cache, &parent)); /* the only holder of the old one by now */
    assert_int_equal(kv_blocks_free(cache), 5);
    check_contents(cache, &child);
    check_contents(cache, &parent);
    assert_int_equal(ledger_counts(ledger).live[LEDGER_KV], bytes);
    kv_sequence_close(cache, parent.number);
    check_contents(cache, &child);
    kv_close(cache);
}

/* The copy needs a block of its own: without one, nothing changes. */
static void a_fork_without_a_free_block_stays_as_it_is(void **state)
{
    (void)state;
    struct kv_cache *cache = open_cache(2, 2);
    struct truth parent = truth_of("012345"), child = parent;
    run(cache, &parent);
    check_ok(kv_fork(cache, parent.number, &child.number, &error));
    assert_int_equal(kv_make_room(cache, child.number, 7, &error), STATUS_DEVICE);
    assert_non_null(strstr(error.message, "out of blocks: 1 more"));
    check_contents(cache, &child);
    kv_sequence_close(cache, parent.number);
    child.tokens[child.length++] = 9;
    assert_true(compute(cache, &child));
    check_contents(cache, &child);
    kv_close(cache);
}

static void full_blocks_are_found_and_the_last_token_is_left(void **state)
{
    (void)state;
    struct kv_cache *cache = open_cache(4, 12);
    struct truth first = truth_of("0123456789"), same = first, shorter = truth_of("01234567"),
                 other = truth_of("0123999999");
    assert_int_equal(run(cache, &first), 0);
    assert_int_equal(run(cache, &same), 8);
    assert_int_equal(run(cache, &shorter), 4); /* all 8 are there, but the last token must be computed */
    assert_int_equal(run(cache, &other), 4);
    /* first: 3 blocks; same: 1 more; shorter: computed its second block, which `first` had published: merged; other: 2
     */
    assert_int_equal(kv_blocks_free(cache), 12 - 3 - 1 - 2);
    assert_int_equal(kv_blocks_taken(cache), 3 + 1 + 1 + 2);
    check_contents(cache, &first);
    kv_close(cache);
}

/* What nobody holds stays until its block is needed, the end of a sequence before its beginning, older ones before
   younger ones. */
static void unreferenced_content_is_evicted_least_recently_used_first(void **state)
{
    (void)state;
    struct kv_cache *cache = open_cache(2, 6);
    struct truth old = truth_of("000000000"), young = truth_of("111111111");
    run(cache, &old);
    kv_sequence_close(cache, old.number);
    run(cache, &young);
    kv_sequence_close(cache, young.number);
    assert_int_equal(kv_blocks_free(cache), 6);
    assert_int_equal(kv_blocks_cached(cache), 4);
    struct truth needy = truth_of("2222222222"); /* 3 blocks: two without content, and the end of the old one */
    assert_int_equal(run(cache, &needy), 0);
    int hit, number;
    check_ok(kv_sequence_open_with_prefix(cache, old.tokens, old.length, &number, &hit, &error));
    assert_int_equal(hit, 4);
    kv_sequence_close(cache, number);
    check_ok(kv_sequence_open_with_prefix(cache, young.tokens, young.length, &number, &hit, &error));
    assert_int_equal(hit, 8);
    kv_close(cache);
}

/* A published block that its only holder cuts and writes again is no longer found as what it was. */
static void rewritten_content_is_not_found(void **state)
{
    (void)state;
    struct kv_cache *cache = open_cache(2, 8);
    struct truth writer = truth_of("012345678"), reader = writer;
    run(cache, &writer);
    check_ok(kv_truncate(cache, writer.number, 6, &error));
    writer.length = 6;
    assert_int_equal(run(cache, &reader), 8); /* not written yet: still what it was */
    kv_sequence_close(cache, reader.number);
    writer.tokens[writer.length++] = 0;
    assert_true(compute(cache, &writer));
    assert_int_equal(run(cache, &reader), 4);
    check_contents(cache, &writer);
    kv_close(cache);
}

/* A fork publishes its second block behind another's first one, and then rewrites that: the other holder of the second
   block publishes it behind its own. */
static void a_block_is_published_again_behind_another(void **state)
{
    (void)state;
    struct kv_cache *cache = open_cache(3, 8);
    struct truth known = truth_of("0123"), writer = truth_of("01234567"), other = writer,
                 reader = truth_of("012345678");
    run(cache, &known);
    kv_sequence_close(cache, known.number);
    check_ok(kv_sequence_open(cache, &writer.number, &error));
    assert_true(compute(cache, &writer));
    check_ok(kv_fork(cache, writer.number, &other.number, &error));
    kv_publish(cache, writer.number, writer.tokens);
    check_ok(kv_truncate(cache, writer.number, 1, &error));
    writer.length = 1;
    writer.tokens[writer.length++] = 9;
    assert_true(compute(cache, &writer));
    kv_publish(cache, other.number, other.tokens);
    check_contents(cache, &other);
    assert_int_equal(run(cache, &reader), 8);
    kv_close(cache);
}

/* ---- random operations ---- */

enum { SEQUENCES = 6, BLOCKS = 26 };

static void check_accounts(const struct kv_cache *cache, const struct truth *truths)
{
    int references[BLOCKS] = {0}, held = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        const int32_t *table;
        int blocks = truths[s].number >= 0 ? kv_block_table(cache, truths[s].number, &table) : 0;
        for (int b = 0; b < blocks; b++)
            held += references[table[b]]++ == 0;
    }
    for (int b = 0; b < BLOCKS; b++)
        assert_int_equal(cache->blocks.references[b], references[b]);
    assert_int_equal(kv_blocks_free(cache), BLOCKS - held);
}

/* A prompt of one of three beginnings, so that many begin alike; two different tokens, so that tails do too. */
static void random_prompt(struct truth *truth, uint64_t *random)
{
    int start = test_random(random, 0, 2), common = test_random(random, 0, 20);
    truth->length = common + test_random(random, 1, 12);
    for (int i = 0; i < truth->length; i++)
        truth->tokens[i] = i < common ? start : test_random(random, 0, 1);
}

static void random_append(struct truth *truth, uint64_t *random)
{
    int most = MOST_TOKENS - truth->length;
    for (int i = test_random(random, 0, most < 12 ? most : 12); i > 0; i--)
        truth->tokens[truth->length++] = test_random(random, 0, 1);
}

/* Full blocks of `truth` that another sequence holds published: those cannot have been evicted. */
static int surely_found(const struct kv_cache *cache, const struct truth *truths, const struct truth *truth)
{
    int most = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        if (truths[s].number < 0 || &truths[s] == truth)
            continue;
        int limit = cache->sequences[truths[s].number].published * SIZE, common = 0;
        while (common < limit && common < truth->length - 1 && truths[s].tokens[common] == truth->tokens[common])
            common++;
        most = common / SIZE > most ? common / SIZE : most;
    }
    return most * SIZE;
}

static void open_randomly(struct kv_cache *cache, struct truth *truths, struct truth *truth, uint64_t *random)
{
    int hit, from = test_random(random, 0, SEQUENCES - 1);
    if (test_random(random, 0, 2) == 0 && truths[from].number >= 0) {
        *truth = truths[from];
        check_ok(kv_fork(cache, truths[from].number, &truth->number, &error));
        return;
    }
    random_prompt(truth, random);
    check_ok(kv_sequence_open_with_prefix(cache, truth->tokens, truth->length, &truth->number, &hit, &error));
    assert_true(hit % SIZE == 0 && hit < truth->length && hit >= surely_found(cache, truths, truth));
    int wanted = truth->length;
    truth->length = hit;
    check_contents(cache, truth);
    truth->length = wanted;
    if (!compute(cache, truth))
        truth->length = hit;
}

static void change_randomly(struct kv_cache *cache, struct truth *truth, uint64_t *random)
{
    int held = truth->length;
    switch (test_random(random, 0, 5)) {
    case 0:
        kv_sequence_close(cache, truth->number);
        truth->number = -1;
        return;
    case 1:
        truth->length = test_random(random, 0, truth->length);
        check_ok(kv_truncate(cache, truth->number, truth->length, &error));
        return;
    case 2:
        kv_publish(cache, truth->number, truth->tokens);
        return;
    default:
        random_append(truth, random);
        if (!compute(cache, truth))
            truth->length = held;
    }
}

static bool on_cpu(void)
{
    return strcmp(device->info.kind, "cpu") == 0;
}

static void random_operations_keep_contents_and_accounts(void **state)
{
    (void)state;
    int operations = on_cpu() ? 20000 : 300; /* the stand-in is slow */
    for (uint64_t seed = 1; seed <= 3; seed++) {
        uint64_t random = seed;
        struct truth truths[SEQUENCES];
        struct kv_cache *cache = open_cache(SEQUENCES, BLOCKS);
        for (int s = 0; s < SEQUENCES; s++)
            truths[s].number = -1;
        for (int i = 0; i < operations; i++) {
            struct truth *truth = &truths[test_random(&random, 0, SEQUENCES - 1)];
            if (truth->number < 0)
                open_randomly(cache, truths, truth, &random);
            else
                change_randomly(cache, truth, &random);
            check_accounts(cache, truths);
            const struct truth *seen = &truths[test_random(&random, 0, SEQUENCES - 1)];
            if (seen->number >= 0)
                check_contents(cache, seen);
        }
        for (int s = 0; s < SEQUENCES; s++)
            if (truths[s].number >= 0)
                kv_sequence_close(cache, truths[s].number);
        for (int b = 0; b < BLOCKS; b++)
            assert_int_equal(cache->blocks.references[b], 0);
        assert_int_equal(kv_blocks_free(cache), BLOCKS);
        kv_close(cache);
        assert_int_equal(ledger_counts(ledger).live[LEDGER_KV], 0);
    }
}

/* ---- through the model ---- */

/* The row of logits after `count` tokens in the sequence, what it holds already not computed again. */
static float *logits_after(struct test_model *model, struct kv_cache *cache, int sequence, const int32_t *tokens,
                           int count)
{
    struct logits logits;
    int held = kv_length(cache, sequence);
    check_ok(logits_init(&logits, model->ledger, &model->config, DTYPE_F32, 1, &error));
    check_ok(
        model_prefill(&model->model, cache, sequence, tokens + held, count - held, LOGITS_LAST, 0, &logits, &error));
    float *row = test_download_logits(model, &logits, 0, 1);
    logits_free(&logits, model->ledger);
    return row;
}

/* Shared blocks give the logits that a sequence of its own gives: a prompt that was found, and forks that go on
   differently. */
static void shared_blocks_give_the_same_logits(void **state)
{
    (void)state;
    uint64_t random = 5;
    for (int round = 0; round < (on_cpu() ? 6 : 2); round++) {
        struct test_model model;
        struct kv_cache *cache;
        struct config shape = test_random_config(&random);
        const struct model_limits limits = {.max_rows = 48, .max_sequences = 1, .max_blocks = 16};
        const struct kv_options options = {.policy = KV_PAGED,
                                           .dtype = DTYPE_F32,
                                           .max_sequences = 4,
                                           .block_size = test_random(&random, 1, 9),
                                           .max_tokens = 16,
                                           .pool_blocks = 64,
                                           .prefix_cache = true};
        int first, found, fork, plain, hit;
        test_model_open(&model, &shape, DTYPE_F32, 1, &limits);
        check_ok(kv_open(&cache, model.ledger, &model.config, &options, &error));
        int32_t *tokens = test_tokens(&model.config, 16, 3);
        check_ok(kv_sequence_open(cache, &first, &error));
        free(logits_after(&model, cache, first, tokens, 13));
        kv_publish(cache, first, tokens);
        check_ok(kv_fork(cache, first, &fork, &error));
        free(logits_after(&model, cache, first, tokens, 14));
        check_ok(kv_sequence_open_with_prefix(cache, tokens, 16, &found, &hit, &error));
        assert_int_equal(hit, 13 / options.block_size * options.block_size);
        check_ok(kv_sequence_open(cache, &plain, &error));
        float *by_found = logits_after(&model, cache, found, tokens, 16);
        float *by_plain = logits_after(&model, cache, plain, tokens, 16);
        test_assert_close(by_found, by_plain, 1, model.config.vocab_size, 1e-4, "prefix found");
        tokens[13] = (tokens[13] + 1) % (int32_t)model.config.vocab_size;
        check_ok(kv_truncate(cache, plain, 0, &error));
        float *by_fork = logits_after(&model, cache, fork, tokens, 16);
        float *by_other = logits_after(&model, cache, plain, tokens, 16);
        test_assert_close(by_fork, by_other, 1, model.config.vocab_size, 1e-4, "fork");
        free(by_found);
        free(by_plain);
        free(by_fork);
        free(by_other);
        free(tokens);
        kv_close(cache);
        test_model_close(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_copies_on_the_first_write),
        cmocka_unit_test(a_fork_without_a_free_block_stays_as_it_is),
        cmocka_unit_test(full_blocks_are_found_and_the_last_token_is_left),
        cmocka_unit_test(unreferenced_content_is_evicted_least_recently_used_first),
        cmocka_unit_test(rewritten_content_is_not_found),
        cmocka_unit_test(a_block_is_published_again_behind_another),
        cmocka_unit_test(random_operations_keep_contents_and_accounts),
        cmocka_unit_test(shared_blocks_give_the_same_logits),
    };
    return cmocka_run_group_tests_name("kv_sharing", tests, open_all, close_all);
}
