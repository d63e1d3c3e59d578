/* tests/gpu_summary: from results that are made up to verdicts that are known. */
#include "tests/command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static const char tpot_header[] =
    "model,device,dtype,weights,context,batch,tpot_ms_p50,percent_of_read_ceiling,launched_"
    "ms_p50\n";
static const char profile_header[] =
    "phase,context,batch,graphs,operation,share_percent,bytes,kernels,dram_read_bytes\n";

/* FOLDER/<set>/<model>/<name>, or FOLDER/<set>/<name> without a model. */
static void put(const char *set, const char *model, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", command_folder(), set);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s", command_folder(), set, model);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s/%s/%s", command_folder(), set, model, name);
    command_write(path, text, strlen(text));
}

static void put_lines(const char *set, const char *model, const char *name, const char *header, const char *lines)
{
    char text[2048];
    snprintf(text, sizeof text, "%s%s", header, lines);
    put(set, model, name, text);
}

/* Exit status; *csv is what it wrote, to be freed. */
static int summarise(const char *set, char **csv)
{
    char line[1024];
    snprintf(line, sizeof line, "'%s/gpu_summary' '%s/%s' > '%s/said'", getenv("KVLAB_TESTS"), command_folder(), set,
             command_folder());
    int status = system(line);
    assert_true(WIFEXITED(status));
    snprintf(line, sizeof line, "%s/%s/summary.csv", command_folder(), set);
    *csv = command_read(line);
    return WEXITSTATUS(status);
}

static void assert_line(const char *csv, const char *line)
{
    char whole[512];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (strstr(csv, whole) == NULL)
        fail_msg("no line \"%s\" in:\n%s", line, csv);
}

/* Just met: 90 at one context, 95 at another; what is beyond 1,024 tokens or batch 1 does not count. */
static void targets_that_hold(void **state)
{
    (void)state;
    char *csv;
    put_lines("good", "qwen2.5-7b", "tpot.csv", tpot_header,
              "qwen2.5-7b,cuda,bf16,synthetic,128,1,4.0,95.0,6.0\nqwen2.5-7b,cuda,bf16,synthetic,1024,1,5.0,90.0,7.5\n"
              "qwen2.5-7b,cuda,bf16,synthetic,1024,8,5.0,50.0,\nqwen2.5-7b,cuda,bf16,synthetic,32768,1,8.0,70.0,9.0\n");
    put("good", "qwen2.5-7b", "tpot_fit.csv",
        "batch,slope_ns_per_token,predicted_ns_per_token\n8,100.0,1.0\n1,12.0,10.0\n");
    put("good", "qwen2.5-7b", "roofline.csv",
        "phase,tokens,percent_of_matrix_ceiling\nprefill,512,60\nprefill,4096,75.00\ndecode,4096,1.0\n");
    put_lines("good", "qwen2.5-7b", "profile.csv", profile_header,
              "prefill,1024,1,off,pass,100.0,1000,,1500\n"
              "decode,1024,1,off,attention,4.0,7,\"split<float, 64> + \"\"x\"\"\",\n"
              "decode,1024,1,off,gaps,30.5,,,\ndecode,1024,1,off,pass,100.0,2000,,2200\n"
              "decode,1024,1,on,gaps,3.5,,,\ndecode,1024,1,on,pass,100.0,2000,,\n");
    put("good", "qwen2.5-7b", "anatomy.csv", "moment,reserved_bytes,recorded_bytes\nstart,0,0\nweights loaded,64,64\n");
    put("good", ".", "steps.csv",
        "step,model,status,seconds\ntests,all,0,9\nmemcheck,all,0,9\nracecheck,all,timeout,60\n");
    assert_int_equal(summarise("good", &csv), 0);
    assert_memory_equal(csv, "check,model,measured,target,unit,holds\n", 39);
    assert_line(csv, "decode at batch 1 up to context 1024 of the read ceiling,qwen2.5-7b,90.0,>= 90,%,yes");
    assert_line(csv,
                "rise of TPOT per context token up to 32768 over its prediction,qwen2.5-7b,1.200,<= 1.2,ratio,yes");
    assert_line(csv, "prefill of 4096 tokens of the matrix ceiling,qwen2.5-7b,75.00,>= 75,%,yes");
    assert_line(csv, "decode step launched one by one over replayed,qwen2.5-7b,1.500,,ratio,");
    assert_line(csv, "gaps between kernels of a decode step with graphs off,qwen2.5-7b,30.5,,%,");
    assert_line(csv, "gaps between kernels of a decode step with graphs on,qwen2.5-7b,3.5,,%,");
    assert_line(csv, "bytes that memory gave in a prefill over the formula's,qwen2.5-7b,1.500,,ratio,");
    assert_line(csv, "bytes that memory gave in a decode over the formula's,qwen2.5-7b,1.100,,ratio,");
    assert_line(csv, "records of allocations over what the ledger reserved,qwen2.5-7b,1.000,<= 1,ratio,yes");
    assert_line(csv, "tests: exit status,all,0,<= 0,status,yes");
    assert_line(csv, "racecheck: exit status,all,,<= 0,status,not measured");
    free(csv);
}

/* Just missed, each of them; 80 is enough for the smallest model, and no target is set for its prefill. */
static void targets_that_do_not(void **state)
{
    (void)state;
    char *csv;
    put_lines("bad", "qwen2.5-7b", "tpot.csv", tpot_header,
              "qwen2.5-7b,cuda,bf16,synthetic,128,1,4.0,95.0,\nqwen2.5-7b,cuda,bf16,synthetic,1024,1,5.0,89.9,\n"
              "qwen2.5-7b,cuda,bf16,synthetic,32768,1,5.0,89.9,\n");
    put("bad", "qwen2.5-7b", "tpot_fit.csv", "batch,slope_ns_per_token,predicted_ns_per_token\n1,12.1,10.0\n");
    put("bad", "qwen2.5-7b", "roofline.csv", "phase,tokens,percent_of_matrix_ceiling\nprefill,4096,74.99\n");
    put("bad", "qwen2.5-7b", "anatomy.csv", "moment,reserved_bytes,recorded_bytes\nstart,0,0\nweights loaded,64,80\n");
    put_lines("bad", "qwen2.5-0.5b", "tpot.csv", tpot_header, "qwen2.5-0.5b,cuda,bf16,synthetic,128,1,1.0,80.0,\n");
    put("bad", "qwen2.5-0.5b", "roofline.csv", "phase,tokens,percent_of_matrix_ceiling\nprefill,4096,10.00\n");
    put("bad", ".", "steps.csv", "step,model,status,seconds\ntests,all,1,9\n");
    assert_int_equal(summarise("bad", &csv), 1);
    assert_line(csv, "decode at batch 1 up to context 1024 of the read ceiling,qwen2.5-7b,89.9,>= 90,%,no");
    assert_line(csv, "rise of TPOT per context token up to 32768 over its prediction,qwen2.5-7b,1.210,<= 1.2,ratio,no");
    assert_line(csv, "prefill of 4096 tokens of the matrix ceiling,qwen2.5-7b,74.99,>= 75,%,no");
    assert_line(csv, "records of allocations over what the ledger reserved,qwen2.5-7b,1.250,<= 1,ratio,no");
    assert_line(csv, "tests: exit status,all,1,<= 0,status,no");
    assert_line(csv, "decode at batch 1 up to context 1024 of the read ceiling,qwen2.5-0.5b,80.0,>= 80,%,yes");
    assert_line(csv, "prefill of 4096 tokens of the matrix ceiling,qwen2.5-0.5b,10.00,,%,");
    free(csv);
}

/* What was not measured, not measured as far, or has an empty cell is neither a yes nor a no. */
static void what_is_missing(void **state)
{
    (void)state;
    char *csv;
    put_lines("empty", "qwen2.5-1.5b", "tpot.csv", tpot_header, "qwen2.5-1.5b,cuda,bf16,synthetic,128,1,1.0,,\n");
    put("empty", "qwen2.5-1.5b", "tpot_fit.csv", "batch,slope_ns_per_token,predicted_ns_per_token\n1,12.1,10.0\n");
    put("empty", "qwen2.5-1.5b", "anatomy.csv", "moment,reserved_bytes,recorded_bytes\nstart,0,\n");
    assert_int_equal(summarise("empty", &csv), 0);
    assert_line(csv, "decode at batch 1 up to context 1024 of the read ceiling,qwen2.5-1.5b,,>= 90,%,not measured");
    assert_line(
        csv, "rise of TPOT per context token up to 32768 over its prediction,qwen2.5-1.5b,,<= 1.2,ratio,not measured");
    assert_line(csv, "prefill of 4096 tokens of the matrix ceiling,qwen2.5-1.5b,,,%,not measured");
    assert_line(csv, "records of allocations over what the ledger reserved,qwen2.5-1.5b,,<= 1,ratio,not measured");
    assert_line(csv, "tests: exit status,all,,<= 0,status,not measured");
    free(csv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(targets_that_hold),
        cmocka_unit_test(targets_that_do_not),
        cmocka_unit_test(what_is_missing),
    };
    return cmocka_run_group_tests_name("gpu_check", tests, command_setup, command_cleanup);
}
