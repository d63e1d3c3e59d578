/* Published numbers, recomputed: each claim of the lessons against a verdict worked out by hand, claims made wrong in
   ways that are known, and what cannot be read. */
#include "engine/claims/audit.h"
#include "tests/command.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static char claims_path[4096], models_dir[4096];

static int find_data(void **state)
{
    snprintf(claims_path, sizeof claims_path, "%s/lessons/claims.csv", config_data_dir());
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    return command_setup(state);
}

/* ---- printed numbers --------------------------------------------------------------------------------------------- */

static void numbers_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t length;
        uint64_t digits;
        int decimals;
    } known[] = {{"12.0", 4, 120, 1},
                 {"1,024", 5, 1024, 0},
                 {"1,024,5", 5, 1024, 0},
                 {"27.63e12", 8, 27630000000000, 0},
                 {"318.3e9", 7, 318300000000, 0},
                 {"1.5e", 3, 15, 1},
                 {"0.65 %", 4, 65, 2},
                 {"007", 3, 7, 0},
                 {"1,02", 1, 1, 0},
                 {"12.", 2, 12, 0},
                 {"999999999999999999", 18, 999999999999999999, 0}};
    static const char *const refused[] = {"", "-1", ".5", "x", "9999999999999999999", "e5", ","};
    for (size_t i = 0; i < COUNT(known); i++) {
        struct printed printed;
        assert_int_equal(printed_read(&printed, known[i].text, strlen(known[i].text)), known[i].length);
        assert_int_equal(printed.digits, known[i].digits);
        assert_int_equal(printed.decimals, known[i].decimals);
    }
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct printed printed;
        assert_int_equal(printed_read(&printed, refused[i], strlen(refused[i])), 0);
    }
}

static enum printed_fit fit_of(const char *text, uint64_t unit, uint64_t count)
{
    struct printed printed;
    struct quantity_value value = {.whole = true, .count = count};
    assert_int_equal(printed_read(&printed, text, strlen(text)), strlen(text));
    return printed_fit(&printed, unit, &value);
}

/* The precision is the text's: half of the last digit, ties either way; then digits cut off; then filling zeros. */
static void precision_of_the_text(void **state)
{
    (void)state;
    assert_int_equal(fit_of("12", 1024, 12288), FIT_EXACT);
    assert_int_equal(fit_of("12.0", 1024, 12288), FIT_EXACT);
    assert_int_equal(fit_of("296.8", 1024, 303872), FIT_ROUNDED); /* 296.75: a tie, up */
    assert_int_equal(fit_of("296.7", 1024, 303872), FIT_ROUNDED); /* and down */
    assert_int_equal(fit_of("296.6", 1024, 303872), FIT_NONE);
    assert_int_equal(fit_of("0.94", 1, 1), FIT_NONE);
    assert_int_equal(fit_of("15.2", 1000000000, 15270000000), FIT_CUT);
    assert_int_equal(fit_of("15.3", 1000000000, 15270000000), FIT_ROUNDED);
    assert_int_equal(fit_of("15", 1000000000, 15520000000), FIT_NONE); /* two digits are too few to cut */
    assert_int_equal(fit_of("1", 1000000000, 1543714304), FIT_NONE);
    assert_int_equal(fit_of("0.05", 1000000000, 58720256), FIT_NONE);
    assert_int_equal(fit_of("0.058", 1000000000, 58720256), FIT_NONE);
    assert_int_equal(fit_of("0.0587", 1000000000, 58770256), FIT_CUT);
    assert_int_equal(fit_of("15.4", 1000000000, 15270000000), FIT_NONE);
    assert_int_equal(fit_of("328000", 1, 327845), FIT_ZEROS);
    assert_int_equal(fit_of("329000", 1, 327845), FIT_NONE);
    assert_int_equal(fit_of("140", 1000000000, 141107412992), FIT_ZEROS);
    assert_int_equal(fit_of("100", 1, 104), FIT_ZEROS); /* as 10 tens; a single digit would say next to nothing */
    assert_int_equal(fit_of("100", 1, 106), FIT_NONE);
    assert_int_equal(fit_of("18446744073709551", 1024, UINT64_MAX), FIT_NONE); /* no overflow on the way */
    assert_int_equal(fit_of("18.4", 1000000000000000000, UINT64_MAX), FIT_ROUNDED);
}

/* ---- the lessons' claims ----------------------------------------------------------------------------------------- */

/* Worked by hand. What is not here is exact: whole multiples of the unit printed, or whole bytes. */
static const struct {
    const char *id, *verdict;
    const char *value;  /* recomputed, in the quantity's own unit; NULL where another row has it */
    const char *reason; /* has this in it */
} by_hand[] = {
    {"K18", "rounded", "91.378", "91.378 %"},                          /* 100 * 2489319424 / 2724200448 */
    {"K19", "rounded", "303872", "296.75 KiB"},                        /* 151,936 * 2 */
    {"K20", "rounded", "10.5982", "rounded"},                          /* 303872 / 28672 */
    {"K21", "rounded", "117440512", "117.44 MB"},                      /* 28,672 * 4,096 */
    {"K22", "rounded", "3087428608", "3.08743 GB"},                    /* 1,543,714,304 * 2 */
    {"K23", "rounded", "15231233024", "15.231 GB"},                    /* 7,615,616,512 * 2 */
    {"K24", "rounded", "3.80383", "3.804 %"},                          /* 117440512 / 3087428608 */
    {"K25", "rounded", "3758096384", "3.7581 GB (3.5 GiB)"},           /* 117440512 * 32 */
    {"K26", "rounded", "53.445", "rounded"},                           /* 10208 / 191 */
    {"K27", "rounded", "96.1255", "rounded"},                          /* 24512 / 255 */
    {"K28", "rounded", "170.778", "rounded"},                          /* 65408 / 383 */
    {"K29", "rounded", "307.28", "rounded"},                           /* 196352 / 639 */
    {"K30", "rounded", "327845", "3 digits"},                          /* 9.4e9 / 28672 = 327,845.98 */
    {"K34", "unit slip", "39321600000", "37,500 MiB divided by 1000"}, /* 750 MiB * 50; 39.3 GB, 36.6 GiB */
    {"K35", "wrong", "681050112", "1.01x; no single"},                 /* 622329856 + 58720256; 691.1 MB was measured */
    {"C01", "rounded", "3087428608", "3.08743"},
    {"C02", "rounded", "6174857216", "6.1749"},    /* 1,543,714,304 * 4 */
    {"C04", "rounded", "86.8049", "rounded"},      /* 27.63e12 / 318.3e9 */
    {"C05", "rounded", "0.645868", "0.6459 %"},    /* 57.8 * 2 * 1543714304 / 27.63e12 */
    {"C06", "rounded", "56.0645", "56.065 %"},     /* 57.8 * 3087428608 / 318.3e9 */
    {"C07", "rounded", "73.772", "73.772 %"},      /* 6602 * 2 * 1543714304 / 27.63e12 */
    {"O02", "rounded", "2740775936", "2.7408 GB"}, /* 15231233024 - 12490457088 */
    {"O05", "rounded", "3087428608", "2,944.401 MiB"},
    {"T01", "unit slip", "1073741824", "GiB printed as GB"}, /* 131,072 * 8,192 = 2^30 */
    {"T02", "wrong", "10737418240",
     "(by 2, if GiB was meant); explained by K only"}, /* 327,680 * 32,768 = 10 * 2^30: twice as much */
    {"T03", "wrong", "80", "64 is its number of query heads"},
    {"T04", "rounded", "141107412992", "2 digits"},      /* 70,553,706,496 * 2 */
    {"T06", "rounded", "117.647", "2 digits"},           /* 200 / 1.7 */
    {"G01", "unit slip", "131072", "KiB printed as KB"}, /* 2 * 32 * 8 * 128 * 2 */
    {"G02", "unit slip", "536870912", "MiB printed as MB"},
    {"G03", "unit slip", "524288", "KiB printed as KB"}, /* 2 * 32 * 32 * 128 * 2 */
    {"G04", "unit slip", "2147483648", "GiB printed as GB"},
    {"G05", "unit slip", "327680", "KiB printed as KB"}, /* 2 * 80 * 8 * 128 * 2 */
    {"G06", "unit slip", "1342177280", "GiB printed as GB: 1.25 GiB"},
    {"G08", "unit slip", "17179869184", "GiB printed as GB"},
    {"G09", "unit slip", "8589934592", "GiB printed as GB"},
    {"G10", "unit slip", "65536", "KiB printed as KB"},     /* 131072 / 2 */
    {"G11", "unit slip", "536870912", "MiB printed as MB"}, /* 131,072 * 4,096: the window, not the context */
};

static const char *text(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_string(value) ? json_string_value(value) : "";
}

static void the_lessons_claims(void **state)
{
    (void)state;
    struct command_outcome outcome = command_run("audit %s --format json --out %s/out", claims_path, command_folder());
    assert_int_equal(outcome.status, 0);
    json_t *document = json_loads(outcome.out, 0, NULL), *rows = json_object_get(document, "audit"), *row;
    size_t i, listed = 0, counts[AUDIT_VERDICTS] = {0};
    assert_int_equal(json_array_size(rows), 64);
    json_array_foreach(rows, i, row)
    {
        const char *verdict = "exact", *reason = "", *value = NULL;
        for (size_t k = 0; k < COUNT(by_hand); k++)
            if (strcmp(by_hand[k].id, text(row, "id")) == 0) {
                verdict = by_hand[k].verdict;
                reason = by_hand[k].reason;
                value = by_hand[k].value;
                listed++;
            }
        if (strcmp(text(row, "verdict"), verdict) != 0 || !strstr(text(row, "reason"), reason) ||
            (value && strcmp(value, text(row, "recomputed_value")) != 0))
            fail_msg("%s: expected %s, %s, \"%s\"; got %s, %s, \"%s\"", text(row, "id"), verdict, value ? value : "-",
                     reason, text(row, "verdict"), text(row, "recomputed_value"), text(row, "reason"));
        for (int k = 0; k < AUDIT_VERDICTS; k++)
            counts[k] += strcmp(verdict, audit_verdict_name((enum audit_verdict)k)) == 0;
    }
    assert_int_equal(listed, COUNT(by_hand));
    assert_int_equal(counts[AUDIT_EXACT], 26);
    assert_int_equal(counts[AUDIT_ROUNDED], 23);
    assert_int_equal(counts[AUDIT_UNIT_SLIP], 12);
    assert_int_equal(counts[AUDIT_WRONG], 3);
    json_decref(document);
    command_free(&outcome);
}

/* Every quantity that occurs in the claims is one row of the table, and the other way round. */
static void quantities_are_those_of_the_claims(void **state)
{
    (void)state;
    char *claims = command_read(claims_path);
    for (const struct audit_quantity *quantity = audit_quantities; quantity->name; quantity++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, ",%s,", quantity->name);
        if (!strstr(claims, wanted))
            fail_msg("%s is in no claim", quantity->name);
    }
    free(claims);
}

/* ---- one changed input ------------------------------------------------------------------------------------------- */

static struct audit_result check(const char *quantity, const char *model, const char *params, const char *published,
                                 const char *unit)
{
    struct audit_claim claim = {quantity, model, params, published, unit};
    struct audit_result result;
    struct error error;
    if (audit_check(&result, &claim, models_dir, &error) != STATUS_OK)
        fail_msg("%s %s: %s", quantity, published, error.message);
    return result;
}

/* Correct numbers made wrong by one mistake each: the reason must name it. Qwen2.5-7B: 28 layers, 28 query and 4 KV
   heads of 128; 57,344 bytes a token in bf16. */
static void mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *quantity, *model, *params, *published, *unit, *reason;
    } known[] = {
        {"kv_bytes_per_token", "qwen2.5-7b", "dtype=bf16", "392", "KiB",
         "the 28 query heads instead of the 4 KV heads"},
        {"kv_bytes_per_token", "qwen2.5-7b", "dtype=bf16", "28", "KiB", "K only"},
        {"kv_bytes_per_token", "qwen2.5-7b", "dtype=bf16", "112", "KiB", "f32"},
        {"kv_bytes_per_token", "qwen2.5-7b", "dtype=q8_0", "56", "KiB", "2 bytes a value"},
        {"kv_bytes_per_token", "qwen2.5-7b", "dtype=bf16", "30464", "B", "q8_0"}, /* 57,344 * 17 / 32 */
        {"kv_bytes_per_token", "qwen2.5-7b", "dtype=bf16", "65536", "B", "32 layers instead of 28"},
        {"kv_bytes_per_token", "qwen2.5-7b", "dtype=bf16", "43008", "B", "21 layers"}, /* or 3 KV heads, or 96 */
        {"kv_bytes_per_token_mha", "qwen2.5-7b", "dtype=bf16", "56", "KiB", "the 4 KV heads instead of the 28"},
        {"kv_bytes", "qwen2.5-7b", "dtype=bf16;context=4096;batch=8", "224", "MiB", "one sequence instead of 8"},
        {"kv_bytes", "qwen2.5-7b", "dtype=bf16;context=2048", "224", "MiB", "f32"},
        {"kv_bytes", "qwen2.5-7b", "dtype=bf16;context=8192", "224", "MiB", "context of 4096"},
        {"kv_bytes", "mistral-7b-v0.1", "dtype=f16;context=32768", "4", "GiB", "without the window of 4096"},
        {"logits_bytes", "qwen2.5-7b", "dtype=bf16;context=2048", "304128", "B", "one token instead of the whole"},
        {"logits_bytes", "qwen2.5-7b", "dtype=bf16;context=2048", "1188", "MiB", "f32"},
        {"weight_bytes", "qwen2.5-7b", "dtype=bf16", "30.462", "GB", "f32"},
        {"parameters", "qwen2.5-1.5b", "", "1777088000", "parameters", "tied head counted a second time"},
        {"parameters", "qwen2.5-1.5b", "", "1310340608", "parameters", "without embeddings"},
        {"decode_matrix_percent", "qwen2.5-1.5b", "tokens_per_s=57.8;flops=27.63e12", "0.32", "%", "one FLOP"},
        {"effective_tokens_per_s", "", "ttft_s=1.5;decode_s=2;new=200", "100.0", "tokens/s",
         "after the first token alone"},
        {"num_layers", "llama-3-70b", "", "8", "layers", "8 is its number of KV heads"},
        {"kv_tensors", "qwen2.5-1.5b", "", "28", "tensors", "K only"},
        /* layers that differ: 62 x 8,192 x 32,768; 62 x 8,192 x 1,024; half of 3,120,562,176 */
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768", "16642998272", "B", "without the window of 1024"},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768", "520093696", "B", "window of 1024 tokens on all"},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768", "1560281088", "B", "K only"},
        /* gpt-oss-20b: 24 layers, 64 query and 8 KV heads of 64: 393,216 for 49,152 */
        {"kv_bytes_per_token", "gpt-oss-20b", "dtype=bf16", "384", "KiB", "the 64 query heads instead of the 8 KV"},
        {"kv_bytes_per_token", "gpt-oss-20b", "dtype=bf16", "6", "KiB", "1 KV head instead of 8"},
        {"kv_bytes_per_token", "gpt-oss-20b", "dtype=bf16", "96", "KiB", "f32"},
        /* DeepSeek-V3: 61 x 128 x (192 + 128) x 2; 61 x 576 x 2 x 2 */
        {"kv_bytes_per_token", "deepseek-v3", "dtype=bf16", "4997120", "B", "K and V of the 128 query heads"},
        {"kv_bytes_per_token", "deepseek-v3", "dtype=bf16", "140544", "B", "counted twice, as K and as V"},
        {"kv_bytes_per_token", "deepseek-v3", "dtype=bf16", "71424", "B", "62 layers instead of 61"},
        /* Jamba: 4 of 32 layers keep K and V, of 8 heads of 128: 16,384 bytes a token for 131,072 */
        {"kv_bytes_per_token", "jamba-v0.1", "dtype=bf16", "128", "KiB", "all 32 layers instead of the 4 that keep"},
        /* Gemma 3n E2B: 10 of 30 layers read the cache of another */
        {"kv_tensors", "gemma-3n-e2b", "", "60", "tensors", "all 30 layers instead of the 20"},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct audit_result result =
            check(known[i].quantity, known[i].model, known[i].params, known[i].published, known[i].unit);
        if (result.verdict != AUDIT_WRONG || !strstr(result.reason, known[i].reason))
            fail_msg("%s %s %s: expected \"%s\", got %s: %s", known[i].quantity, known[i].published, known[i].unit,
                     known[i].reason, audit_verdict_name(result.verdict), result.reason);
    }
}

/* Models beyond those that run: read as shapes. */
static void other_families(void **state)
{
    (void)state;
    static const struct {
        const char *quantity, *model, *params, *published, *unit, *verdict;
    } known[] = {
        /* Qwen3-8B: 36 x 8 x 128 x 2 x 2 = 147,456 */
        {"kv_bytes_per_token", "qwen3-8b", "dtype=bf16", "144", "KiB", "exact"},
        {"kv_bytes_per_token", "qwen3-8b", "dtype=bf16", "144", "KB", "unit slip"},
        {"kv_bytes_per_token", "qwen3-8b", "dtype=bf16", "72", "KiB", "wrong"},
        /* DeepSeek-V3: 61 layers x (512 + 64) x 2, no factor of two */
        {"kv_bytes_per_token", "deepseek-v3", "dtype=bf16", "70272", "B", "exact"},
        {"kv_tensors", "deepseek-v3", "", "61", "tensors", "exact"},
        /* Gemma 2 9B: 21 full layers, 21 of window 4,096; 8 KV heads of 256: 8,192 bytes a layer and token */
        {"kv_bytes", "gemma-2-9b", "dtype=bf16;context=8192", "2113929216", "B", "exact"},
        {"kv_bytes", "gemma-2-9b", "dtype=bf16;context=8192;batch=2", "4227858432", "B", "exact"},
        {"parameters", "qwen3-8b", "", "8190735360", "parameters", "exact"},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct audit_result result =
            check(known[i].quantity, known[i].model, known[i].params, known[i].published, known[i].unit);
        if (strcmp(audit_verdict_name(result.verdict), known[i].verdict) != 0)
            fail_msg("%s %s: expected %s, got %s: %s", known[i].quantity, known[i].model, known[i].verdict,
                     audit_verdict_name(result.verdict), result.reason);
    }
}

/* FLOPs and bytes are those of the experts that a token is sent to. */
static void experts_count_where_they_are_used(void **state)
{
    (void)state;
    static const struct {
        const char *quantity, *model, *params, *published, *verdict, *value, *reason;
    } known[] = {
        /* Mixtral 8x7B: 12,879,925,248 of 46,702,792,704; 2 x 12.88e9 x 100 / 100e12 */
        {"decode_matrix_percent", "mixtral-8x7b", "tokens_per_s=100;flops=100e12", "2.58", "rounded", "2.57599",
         "a token uses 12,879,925,248 parameters of 46,702,792,704"},
        {"decode_matrix_percent", "mixtral-8x7b", "tokens_per_s=100;flops=100e12", "9.34", "wrong", "2.57599",
         "all parameters instead of those active"},
        {"prefill_matrix_percent", "mixtral-8x7b", "tokens_per_s=1000;flops=100e12", "25.8", "rounded", "25.7599",
         "a token uses"},
        /* 12,879,925,248 x 2 bytes x 100 / 3.35e12 */
        {"decode_read_percent", "mixtral-8x7b", "dtype=bf16;tokens_per_s=100;bytes_per_s=3.35e12", "76.9", "rounded",
         "76.8951", "a token uses"},
        {"decode_read_percent", "mixtral-8x7b", "dtype=bf16;tokens_per_s=100;bytes_per_s=3.35e12;batch=8", "9.6",
         "not computable", "", "depends on the routing"},
        /* all weights are there, whoever uses them */
        {"weight_bytes", "mixtral-8x7b", "dtype=bf16", "93405585408", "exact", "93405585408", ""},
        {"weight_bytes", "mixtral-8x7b", "dtype=bf16", "25759850496", "wrong", "93405585408",
         "active for a token instead of all"},
        /* what the claim says of the parameters counts: 2 x 13e9 x 100 / 100e12 */
        {"decode_matrix_percent", "mixtral-8x7b", "active_parameters=13e9;tokens_per_s=100;flops=100e12", "2.6",
         "exact", "2.6", ""},
        {"decode_matrix_percent", "mixtral-8x7b", "parameters=50e9;tokens_per_s=100;flops=100e12", "10", "exact", "10",
         ""},
        /* eight sequences share what a step reads: 3,087,428,608 x 400 / 8 / 318.3e9 */
        {"decode_read_percent", "qwen2.5-1.5b", "dtype=bf16;tokens_per_s=400;bytes_per_s=318.3e9;batch=8", "48.5",
         "rounded", "48.4987", ""},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct audit_result result = check(known[i].quantity, known[i].model, known[i].params, known[i].published,
                                           audit_quantity_find(known[i].quantity)->unit);
        if (strcmp(audit_verdict_name(result.verdict), known[i].verdict) != 0 ||
            strcmp(result.value_text, known[i].value) != 0 || !strstr(result.reason, known[i].reason))
            fail_msg("%s %s: expected %s, %s, \"%s\"; got %s, %s, \"%s\"", known[i].quantity, known[i].params,
                     known[i].verdict, known[i].value, known[i].reason, audit_verdict_name(result.verdict),
                     result.value_text, result.reason);
    }
    struct audit_result result =
        check("prefill_matrix_percent", "deepseek-v3", "tokens_per_s=1000;flops=990e12", "1", "%");
    assert_true(strtod(result.value_text, NULL) > 7.3 && strtod(result.value_text, NULL) < 7.7); /* 37e9 of 671e9 */
}

/* Layers that differ keep what they are where params say one thing of them. */
static void params_change_layers_that_differ(void **state)
{
    (void)state;
    static const struct {
        const char *quantity, *model, *params, *value, *reason;
    } known[] = {
        /* 10 full and 52 layers of window 1,024; 8,192 bytes: (10 x 32,768 + 52 x 1,024) x 8,192 */
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768", "3120562176", ""},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768;window=1024", "3120562176", ""},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768;window=512", "2902458368", ""},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768;layers=62", "3120562176", ""},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768;layers=60", "", "the model's layers differ"},
        {"num_layers", "gemma-3-27b", "layers=60", "60", ""},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768;kv_heads=8", "1560281088", ""},
        {"kv_bytes", "gemma-3-27b", "dtype=bf16;context=32768;head_dim=64", "1560281088", ""},
        /* 61 and 62 times 576 x 2 */
        {"kv_bytes_per_token", "deepseek-v3", "dtype=bf16;layers=62", "71424", ""},
        {"kv_tensors", "deepseek-v3", "layers=62", "62", ""},
        {"kv_bytes_per_token", "deepseek-v3", "dtype=bf16;kv_heads=8", "", "keep no heads"},
        {"kv_bytes", "deepseek-v3", "dtype=bf16;context=8192;window=4096", "", "no window"},
        /* 23 full, 23 windowed: 23 x (8,192 + 4,096) x 8,192, and with half the window */
        {"kv_bytes", "gemma-2-27b", "dtype=bf16;context=8192;window=4096", "2315255808", ""},
        {"kv_bytes", "gemma-2-27b", "dtype=bf16;context=8192;window=2048", "1929379840", ""},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct audit_result result = check(known[i].quantity, known[i].model, known[i].params, "1",
                                           audit_quantity_find(known[i].quantity)->unit);
        if (strcmp(result.value_text, known[i].value) != 0 || !strstr(result.reason, known[i].reason))
            fail_msg("%s %s: expected %s, \"%s\"; got %s, \"%s\"", known[i].model, known[i].params, known[i].value,
                     known[i].reason, result.value_text, result.reason);
    }
}

/* One unit for another, in every pair that is printed for one another. */
static void slips_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *published, *unit, *reason;
    } known[] = {
        /* Qwen2.5-7B at 4,096: 224 MiB, 234.88 MB */
        {"224", "MB", "MiB printed as MB"},         {"234.9", "MiB", "MB printed as MiB"},
        {"0.224", "GB", "224 MiB divided by 1000"}, {"224", "KiB", "MiB printed as KiB"},
        {"224", "GB", "MiB printed as GB"},         {"0.21875", "GB", "GiB printed as GB"},
        {"234881024", "MB", "bytes printed as MB"},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct audit_result result =
            check("kv_bytes", "qwen2.5-7b", "dtype=bf16;context=4096", known[i].published, known[i].unit);
        if (result.verdict != AUDIT_UNIT_SLIP || !strstr(result.reason, known[i].reason))
            fail_msg("%s %s: expected \"%s\", got %s: %s", known[i].published, known[i].unit, known[i].reason,
                     audit_verdict_name(result.verdict), result.reason);
    }
}

/* A wrong number gets no explanation that it does not deserve, and no unit slip from a single digit. */
static void nothing_is_invented(void **state)
{
    (void)state;
    struct audit_result result = check("kv_bytes", "qwen2.5-7b", "dtype=bf16;context=4096", "187.3", "MiB");
    assert_int_equal(result.verdict, AUDIT_WRONG);
    assert_non_null(strstr(result.reason, "no single changed input"));
    /* 1.54 billion; 170.778 and 42.779: real numbers by the same rule */
    assert_int_equal(check("parameters", "qwen2.5-1.5b", "", "1", "B").verdict, AUDIT_WRONG);
    assert_int_equal(check("parameters", "qwen2.5-1.5b", "", "1.5", "B").verdict, AUDIT_ROUNDED);
    assert_int_equal(check("work_ratio", "", "prompt=128;new=256", "170", "x").verdict, AUDIT_ROUNDED);
    assert_int_equal(check("work_ratio", "", "prompt=32;new=64", "42", "x").verdict, AUDIT_WRONG);
    result = check("work_ratio", "", "prompt=128;new=256", "170", "x");
    assert_non_null(strstr(result.reason, "cut off after the digits printed, not rounded"));
    result = check("kv_bytes", "qwen2.5-7b", "dtype=bf16;context=4096", "0", "MiB");
    assert_int_equal(result.verdict, AUDIT_WRONG);
    result = check("shortfall_bytes", "qwen2.5-1.5b", "dtype=bf16;budget_bytes=12490457088", "0", "GB");
    assert_int_equal(result.verdict, AUDIT_EXACT); /* it fits */
}

/* ---- what has no verdict ----------------------------------------------------------------------------------------- */

static void what_cannot_be_computed(void **state)
{
    (void)state;
    static const struct {
        const char *quantity, *model, *params, *unit, *reason;
    } known[] = {
        {"kv_bytes", "no-such-model", "dtype=f16;context=4096", "GB", "unknown model no-such-model"},
        {"kv_bytes", "llama-3-8b", "context=4096", "GB", "missing: dtype"},
        {"kv_bytes", "", "dtype=f16", "GB", "missing: layers, kv_heads, head_dim, context"},
        {"weight_bytes", "", "layers=2;dtype=f16", "GB", "missing: model"},
        {"kv_bytes", "", "layers=4096;kv_heads=65536;head_dim=65536;dtype=f32;context=2147483648;batch=16777216", "GB",
         "64 bits"},
        {"kv_bytes_per_token", "", "layers=1;kv_heads=1;head_dim=40;dtype=q8_0", "B", "whole blocks"},
    };
    for (size_t i = 0; i < COUNT(known); i++) {
        struct audit_result result = check(known[i].quantity, known[i].model, known[i].params, "1", known[i].unit);
        if (result.verdict != AUDIT_NOT_COMPUTABLE || !strstr(result.reason, known[i].reason))
            fail_msg("%s %s: expected \"%s\", got %s: %s", known[i].quantity, known[i].params, known[i].reason,
                     audit_verdict_name(result.verdict), result.reason);
        assert_string_equal(result.value_text, "");
        assert_true(isnan(result.difference_percent));
    }
    /* An unknown model does not matter where nothing is asked of it. */
    assert_int_equal(
        check("kv_bytes", "no-such-model", "layers=24;kv_heads=8;head_dim=128;dtype=bf16;context=8000", "750", "MiB")
            .verdict,
        AUDIT_EXACT);
}

static void what_cannot_be_read(void **state)
{
    (void)state;
    static const struct {
        const char *row, *word;
    } known[] = {
        {"A1,x,kv_byte,llama-3-8b,dtype=f16,1,GB", "unknown quantity \"kv_byte\"; there are kv_bytes_per_token"},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;context=1,1,Gb", "unknown unit \"Gb\""},
        {"A1,x,gqa_ratio,llama-3-8b,,1,GB", "is given in x"},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f17;context=1,1,GB", "unknown type \"f17\""},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;contxt=1,1,GB", "no input \"contxt\""},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;context=1x,1,GB", "context=1x"},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;context=0,1,GB", "context=0"},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;context=1.5,1,GB", "whole number"},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;context=99999999999,1,GB", "at most"},
        {"A1,x,kv_bytes,llama-3-8b,dtype,1,GB", "not key=value"},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;context=1,about 1,GB", "not a number"},
        {"A1,x,kv_bytes,llama-3-8b,dtype=f16;context=1,,GB", "not a number"},
        {"A1,x,kv_bytes", "number of cells"},
    };
    char path[64], rows[512];
    snprintf(path, sizeof path, "%s/claims.csv", command_folder());
    for (size_t i = 0; i < COUNT(known); i++) {
        snprintf(rows, sizeof rows, "id,lesson,quantity,model,params,published,unit\n%s\n", known[i].row);
        command_write(path, rows, strlen(rows));
        command_refuses(2, known[i].word, "audit %s --out %s/none", path, command_folder());
    }
    command_write(path, "id,quantity\nA,b\n", 16);
    command_refuses(2, "no column \"published\"", "audit %s --out %s/none", path, command_folder());
    command_refuses(2, "cannot read", "audit %s/absent.csv", command_folder());
    command_refuses(2, "FILE.csv is missing", "audit");
    command_refuses(2, "unknown option", "audit %s --fromat json", claims_path);
    snprintf(path, sizeof path, "%s/none", command_folder());
    assert_null(fopen(path, "r")); /* nothing was written */
}

/* ---- what it writes ---------------------------------------------------------------------------------------------- */

/* Rows that nobody would write: a verdict, or status 2 with a message, and nothing else. */
static void damaged_claims(void **state)
{
    (void)state;
    static const char *const good[][5] = {
        {"kv_bytes", "qwen2.5-7b", "dtype=bf16;context=4096;batch=2", "448.0", "MiB"},
        {"work_ratio", "", "prompt=128;new=512", "307", "x"},
        {"capacity_sequences", "deepseek-v3", "dtype=fp8;free_bytes=9400000000;context=2048", "160", "sequences"},
        {"effective_tokens_per_s", "", "ttft_s=1.5;decode_s=0.2;new=200", "120", "tokens/s"},
    };
    static const char alphabet[] = "0123456789.,;=eE-+ xkMGB%iq\xff";
    uint64_t random = 7;
    size_t read = 0;
    for (int round = 0; round < 4000; round++) {
        char cells[5][96];
        for (int i = 0; i < 5; i++)
            snprintf(cells[i], sizeof cells[i], "%s", good[round % 4][i]);
        for (int changes = 1 + round % 2; changes > 0; changes--) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            char *cell = cells[(random >> 33) % 8 == 0 ? 4 : 2 + (random >> 36) % 2]; /* the unit seldom */
            size_t length = strlen(cell);
            if (length)
                cell[(random >> 40) % length] = alphabet[(random >> 50) % (sizeof alphabet - 1)];
        }
        struct audit_claim claim = {cells[0], cells[1], cells[2], cells[3], cells[4]};
        struct audit_result result;
        struct error error = {0};
        enum status status = audit_check(&result, &claim, models_dir, &error);
        assert_true(status == STATUS_OK ? result.reason[0] != 0 : status == STATUS_INPUT && error.message[0]);
        read += status == STATUS_OK;
    }
    if (read < 400)
        fail_msg("only %zu of 4000 could be read", read);
}

static void files_and_formats(void **state)
{
    (void)state;
    char path[96];
    struct command_outcome outcome = command_run("audit --format csv --out %s/csv %s", command_folder(), claims_path);
    assert_int_equal(outcome.status, 0);
    snprintf(path, sizeof path, "%s/csv/audit.csv", command_folder());
    char *csv = command_read(path);
    assert_string_equal(outcome.out, csv);
    static const char header[] = "id,lesson,quantity,model,params,published,unit,recomputed_value,recomputed_unit,"
                                 "difference_percent,verdict,reason\n";
    assert_memory_equal(csv, header, sizeof header - 1);
    snprintf(path, sizeof path, "%s/csv/audit.md", command_folder());
    char *page = command_read(path);
    assert_non_null(strstr(page, "| wrong | 3 |"));
    assert_true(strstr(page, "## Wrong") < strstr(page, "## Exact"));
    snprintf(path, sizeof path, "%s/csv/audit.meta.json", command_folder());
    char *meta = command_read(path);
    assert_non_null(strstr(meta, "\"kvlab audit --format csv --out "));
    assert_non_null(strstr(meta, "claims.csv\""));
    free(csv);
    free(page);
    free(meta);
    command_free(&outcome);
    outcome = command_run("audit %s --out %s/csv --strict", claims_path, command_folder());
    assert_int_equal(outcome.status, 1);
    assert_non_null(strstr(outcome.err, "3 wrong and 12 with the wrong unit"));
    assert_non_null(strstr(outcome.out, "T03"));
    command_free(&outcome);
    outcome = command_run("audit --help");
    assert_int_equal(outcome.status, 0);
    assert_non_null(strstr(outcome.out, "effective_tokens_per_s"));
    command_free(&outcome);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read),
        cmocka_unit_test(precision_of_the_text),
        cmocka_unit_test(the_lessons_claims),
        cmocka_unit_test(quantities_are_those_of_the_claims),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(other_families),
        cmocka_unit_test(experts_count_where_they_are_used),
        cmocka_unit_test(params_change_layers_that_differ),
        cmocka_unit_test(slips_are_named),
        cmocka_unit_test(nothing_is_invented),
        cmocka_unit_test(what_cannot_be_computed),
        cmocka_unit_test(what_cannot_be_read),
        cmocka_unit_test(files_and_formats),
        cmocka_unit_test(damaged_claims),
    };
    return cmocka_run_group_tests(tests, find_data, command_cleanup);
}
