/* Perplexity: values worked by hand, a model whose logits are uniform, and large passes against token by token. */
#include "tests/support.h"

#include "bench/harness/quality.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 90 };
static const struct model_limits limits = {.max_rows = 64, .max_sequences = 1, .max_blocks = 1};
static struct error error;
static char path[64];

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/kvlab-text-XXXXXX");
    int descriptor = mkstemp(path);
    return descriptor < 0 ? -1 : close(descriptor);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_text(const void *data, size_t size)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

static struct config byte_config(void)
{
    uint64_t random = 3;
    struct config config = test_random_config(&random);
    config.vocab_size = 256;
    config.tie_word_embeddings = false;
    return config;
}

static void near(double a, double b, double tolerance)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%.17g is not %.17g within %g", a, b, tolerance);
}

/* p = (1/2, 1/4, 1/8, 1/8) from logits in natural logarithms: 1, 2 and 3 bits. A shift of all logits changes nothing;
   the most negative of f16 and large values do not overflow. */
static void likelihood_of_known_logits(void **state)
{
    (void)state;
    const double LN_2 = log(2.0);
    for (int shift = -2; shift <= 2; shift++) {
        float logits[4];
        for (int i = 0; i < 4; i++)
            logits[i] = (float)(-LN_2 * (i < 3 ? i + 1 : 3) + 300.0 * shift);
        for (int i = 0; i < 4; i++) /* f32 keeps 2^-24 of 600 */
            near(quality_token_nll(DTYPE_F32, logits, 4, i) / LN_2, i < 3 ? i + 1 : 3, 2e-4);
    }
    float two[2] = {0.0F, -1000.0F};
    near(quality_token_nll(DTYPE_F32, two, 2, 0), 0.0, 0.0);
    near(quality_token_nll(DTYPE_F32, two, 2, 1), 1000.0, 0.0);
    uint16_t half[2] = {f16_from_f32(1.5F), f16_from_f32(1.5F)};
    near(quality_token_nll(DTYPE_F16, half, 2, 1), LN_2, 1e-15);
}

static void uniform_logits_give_the_vocabulary(void **state)
{
    (void)state;
    static float logits[1000];
    struct quality quality = {0};
    for (int target = 0; target < 1000; target++) {
        quality.nll += quality_token_nll(DTYPE_F32, logits, 1000, target);
        quality.tokens++;
        quality.bytes += 2;
    }
    near(quality_perplexity(&quality), 1000.0, 1e-9);
    near(quality_bits_per_byte(&quality), log2(1000.0) / 2.0, 1e-12);
}

static void bytes_are_tokens(void **state)
{
    (void)state;
    struct text text;
    struct config config = byte_config();
    static const unsigned char bytes[] = {0, 'a', 255, '\n', 0, 128};
    write_text(bytes, sizeof bytes);
    check_ok(text_read(&text, path, "", &config, &error));
    assert_int_equal(text.count, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(text.tokens[i], bytes[i]);
        assert_int_equal(text.bytes_of[i], 1);
    }
    text_free(&text);
}

/* With a tokenizer beside the weights its tokens count, each with the bytes that it stands for. */
static void a_tokenizer_makes_the_tokens(void **state)
{
    (void)state;
    static const char bytes[] = "The cache keeps the keys.<|im_end|>\n";
    const char *tests = getenv("KVLAB_TESTS");
    char folder[4096];
    struct text text;
    struct config config = byte_config();
    write_text(bytes, sizeof bytes - 1);
    snprintf(folder, sizeof folder, "%s/golden/tokenizers/qwen2", tests ? tests : "tests");
    assert_int_equal(text_read(&text, path, folder, &config, &error), STATUS_INPUT); /* its ids go beyond 255 */
    assert_non_null(strstr(error.message, "vocabulary of 256"));
    config.vocab_size = 1024;
    check_ok(text_read(&text, path, folder, &config, &error));
    int64_t sum = 0;
    for (int64_t i = 0; i < text.count; i++)
        sum += text.bytes_of[i];
    assert_int_equal(sum, sizeof bytes - 1);
    assert_true(text.count > 3 && text.count < (int64_t)sizeof bytes / 2);
    assert_int_equal(text.bytes_of[text.count - 2], strlen("<|im_end|>"));
    text_free(&text);
    write_text("caf\xe9", 4);
    assert_int_equal(text_read(&text, path, folder, &config, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "not UTF-8 at byte 3"));
    assert_non_null(strstr(error.message, path));
}

static void bad_texts_are_refused(void **state)
{
    (void)state;
    struct text text;
    struct config config = byte_config();
    write_text("", 0);
    assert_int_equal(text_read(&text, path, "", &config, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, path));
    assert_int_equal(text_read(&text, "/no/such/text", "", &config, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "/no/such/text"));
    assert_int_equal(text_read(&text, "/tmp", "", &config, &error), STATUS_INPUT);
    config.vocab_size = 151936;
    write_text("a", 1);
    assert_int_equal(text_read(&text, path, "", &config, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "151936"));
    assert_null(text.tokens);
}

static struct text random_text(const struct test_model *m)
{
    struct text text = {.tokens = test_tokens(&m->config, TOKENS, 9), .count = TOKENS};
    text.bytes_of = calloc(TOKENS, sizeof *text.bytes_of);
    assert_non_null(text.bytes_of);
    for (int i = 0; i < TOKENS; i++)
        text.bytes_of[i] = 1 + i % 3;
    return text;
}

static struct quality score(struct test_model *m, const struct text *text, int rows)
{
    int sequence;
    struct scorer scorer;
    struct kv_cache *cache;
    struct quality quality = {0};
    struct kv_options options = {.policy = KV_RESERVED, .dtype = DTYPE_F32, .max_sequences = 1, .max_tokens = TOKENS};
    check_ok(kv_open(&cache, m->ledger, &m->config, &options, &error));
    check_ok(kv_sequence_open(cache, &sequence, &error));
    check_ok(scorer_init(&scorer, &m->model, rows, &error));
    check_ok(scorer_feed(&scorer, cache, sequence, text, 0, text->count, &quality, &error));
    assert_int_equal(kv_length(cache, sequence), text->count);
    scorer_free(&scorer);
    kv_close(cache);
    return quality;
}

/* With a head of zeros every logit is 0, whatever the text: perplexity is the vocabulary. */
static void a_model_that_knows_nothing(void **state)
{
    (void)state;
    struct test_model m;
    struct config config = byte_config();
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    check_ok(m.device->ops->fill_value(m.device, (void *)(uintptr_t)m.model.weights.head, DTYPE_F32,
                                       (size_t)(256 * config.hidden_size), 0.0F, &error));
    struct text text = random_text(&m);
    struct quality quality = score(&m, &text, 64);
    assert_int_equal(quality.tokens, TOKENS - 1);
    assert_int_equal(quality.bytes, 2 * TOKENS - 1); /* 30 times 1 + 2 + 3, without the first token's 1 */
    near(quality_perplexity(&quality), 256.0, 1e-9);
    text_free(&text);
    test_model_close(&m);
}

/* The sum over passes of any size is one sum, and the text's own order matters. 1e-5: f32 sums in another order. */
static void passes_of_any_size_score_alike(void **state)
{
    (void)state;
    struct test_model m;
    struct config config = byte_config();
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    struct text text = random_text(&m);
    struct quality one = score(&m, &text, 1), some = score(&m, &text, 17), most = score(&m, &text, 1000);
    near(one.nll, most.nll, 1e-5 * most.nll);
    near(some.nll, most.nll, 1e-5 * most.nll);
    assert_int_equal(some.tokens, most.tokens);
    int32_t first = text.tokens[0];
    memmove(text.tokens, text.tokens + 1, (TOKENS - 1) * sizeof *text.tokens);
    text.tokens[TOKENS - 1] = first;
    assert_true(fabs(score(&m, &text, 64).nll - most.nll) > 1e-3 * most.nll);
    text_free(&text);
    test_model_close(&m);
}

static void logits_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    int sequence;
    struct test_model m;
    struct scorer scorer;
    struct kv_cache *cache;
    struct quality quality = {0};
    struct config config = byte_config();
    struct kv_options options = {.policy = KV_RESERVED, .dtype = DTYPE_F32, .max_sequences = 1, .max_tokens = TOKENS};
    test_model_open(&m, &config, DTYPE_F32, 0, &limits);
    check_ok(m.device->ops->fill_value(m.device, (void *)(uintptr_t)m.model.weights.head, DTYPE_F32,
                                       (size_t)(256 * config.hidden_size), NAN, &error));
    struct text text = random_text(&m);
    check_ok(kv_open(&cache, m.ledger, &m.config, &options, &error));
    check_ok(kv_sequence_open(cache, &sequence, &error));
    check_ok(scorer_init(&scorer, &m.model, 8, &error));
    assert_int_equal(scorer_feed(&scorer, cache, sequence, &text, 0, 20, &quality, &error), STATUS_INPUT);
    assert_non_null(strstr(error.message, "not finite"));
    scorer_free(&scorer);
    kv_close(cache);
    text_free(&text);
    test_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(likelihood_of_known_logits),
        cmocka_unit_test(uniform_logits_give_the_vocabulary),
        cmocka_unit_test(bytes_are_tokens),
        cmocka_unit_test(a_tokenizer_makes_the_tokens),
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(a_model_that_knows_nothing),
        cmocka_unit_test(passes_of_any_size_score_alike),
        cmocka_unit_test(logits_that_are_not_finite_are_refused),
    };
    return cmocka_run_group_tests_name("quality", tests, setup, teardown);
}
