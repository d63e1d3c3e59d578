/* What of CUPTI needs no device: names of kernels, and the range profiler's host side against the real library of this
   machine's toolkit, where there is one. */
#include "kernels/cuda/cupti.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

extern "C" {
#include <cmocka.h>
}

static struct error error;

static void names_of_kernels(void **)
{
    static const struct {
        const char *name, *shown;
    } known[] = {
        {"_Z8few_rowsIfLi2EEvPT_i", "few_rows<float, 2>"},
        {"void few_rows<float, (bool)1>(float*, int)", "few_rows<float, (bool)1>"},
        {"_Z7combinePfi", "combine"},
        {"(anonymous namespace)::split<64>(int)", "(anonymous namespace)::split<64>"},
        {"_ZN12_GLOBAL__N_15splitILi64EEEvi", "(anonymous namespace)::split<64>"},
        {"sm90_xmma_gemm_bf16bf16_bf16f32", "sm90_xmma_gemm_bf16bf16_bf16f32"},
        {"", ""},
    };
    char text[80];
    for (const auto &kernel : known) {
        cupti_kernel_name(kernel.name, text, sizeof text);
        assert_string_equal(text, kernel.shown);
    }
    cupti_kernel_name("sm90_xmma_gemm", text, 5);
    assert_string_equal(text, "sm90");
}

/* Skips where the library is not here, or was not there to build with; any other failure is one. */
static void need_host_side()
{
#ifdef __SANITIZE_ADDRESS__ /* CUPTI loads libraries with RTLD_DEEPBIND, for which AddressSanitizer ends the process   \
                             */
    print_message("CUPTI cannot be loaded under AddressSanitizer\n");
    skip();
#endif
    const char *const *names;
    size_t count;
    if (cupti_chips(&names, &count, &error) == STATUS_OK)
        return;
    if (!strstr(error.message, "is not installed") && !strstr(error.message, "built without"))
        fail_msg("%s", error.message);
    print_message("%s\n", error.message);
    skip();
}

static void chips_are_known(void **)
{
    const char *const *names;
    size_t count, hopper = 0;
    need_host_side();
    assert_int_equal(cupti_chips(&names, &count, &error), STATUS_OK);
    for (size_t i = 0; i < count; i++)
        hopper += strcmp(names[i], "GH100") == 0;
    assert_int_equal(hopper, 1);
}

/* The chips of the cards that the build is for: Turing, Ampere, Ada, Hopper. */
static void reads_and_writes_in_one_pass(void **)
{
    static const char *const chips[] = {"TU102", "GA100", "GA102", "AD102", "GH100"};
    size_t bytes, count;
    need_host_side();
    for (const char *chip : chips) {
        struct cupti_configuration *configuration;
        if (cupti_configuration_make(&configuration, chip, NULL, &error) != STATUS_OK)
            fail_msg("%s", error.message);
        assert_int_equal(cupti_configuration_passes(configuration), 1);
        assert_non_null(cupti_configuration_image(configuration, &bytes));
        assert_true(bytes > 0);
        cupti_configuration_free(configuration);
    }
    const char *const *metrics = cupti_configuration_metrics(&count);
    assert_int_equal(count, 2);
    assert_string_equal(metrics[0], "dram__bytes_read.sum");
    assert_string_equal(metrics[1], "dram__bytes_write.sum");
}

static void an_unknown_chip_is_refused(void **)
{
    struct cupti_configuration *configuration;
    need_host_side();
    assert_int_equal(cupti_configuration_make(&configuration, "zx81", NULL, &error), STATUS_DEVICE);
    assert_null(configuration);
    if (!strstr(error.message, "zx81") || !strstr(error.message, "cuptiProfilerHostInitialize"))
        fail_msg("unclear: %s", error.message);
    cupti_configuration_free(NULL);
}

/* Counters that are forbidden name the two ways to allow them. */
static void forbidden_counters_say_how_to_allow_them(void **)
{
    const int insufficient_privileges = 35; /* CUPTI_ERROR_INSUFFICIENT_PRIVILEGES */
    assert_int_equal(cupti_fail(&error, insufficient_privileges, "cuptiRangeProfilerEnable", "file.cu", 1),
                     STATUS_DEVICE);
    for (const char *word : {"NVreg_RestrictProfilingToAdminUsers=0", "CAP_SYS_ADMIN", "cuptiRangeProfilerEnable"})
        if (!strstr(error.message, word))
            fail_msg("\"%s\" is not in: %s", word, error.message);
    cupti_fail(&error, 999, "cuptiRangeProfilerStart", "file.cu", 12);
    assert_null(strstr(error.message, "CAP_SYS_ADMIN"));
    assert_non_null(strstr(error.message, "file.cu:12"));
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_kernels),
        cmocka_unit_test(chips_are_known),
        cmocka_unit_test(reads_and_writes_in_one_pass),
        cmocka_unit_test(an_unknown_chip_is_refused),
        cmocka_unit_test(forbidden_counters_say_how_to_allow_them),
    };
    return cmocka_run_group_tests_name("cupti", tests, NULL, NULL);
}
