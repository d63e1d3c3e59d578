/* The estimate of the time left, on a clock that the test moves. */
#include "bench/harness/output.h"
#include "bench/harness/repeats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static double clock_s;

/* This program's own, which the harness in it calls instead of the C library's. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    now->tv_sec = (time_t)clock_s;
    now->tv_nsec = (long)((clock_s - (double)now->tv_sec) * 1e9);
    return 0;
}

static const struct experiment experiment = {.name = "trial"};
static int older;
static FILE *captured;

static void capture(void)
{
    captured = tmpfile();
    assert_non_null(captured);
    fflush(stderr);
    older = dup(STDERR_FILENO);
    assert_true(older >= 0 && dup2(fileno(captured), STDERR_FILENO) >= 0);
}

/* What was written to stderr since capture(). */
static void assert_captured(const char *expected)
{
    char text[2048];
    fflush(stderr);
    dup2(older, STDERR_FILENO);
    close(older);
    rewind(captured);
    text[fread(text, 1, sizeof text - 1, captured)] = 0;
    fclose(captured);
    assert_string_equal(text, expected);
}

/* 2 of 8 parts took 10 s, so the other 6 take 30; then 4 took 30 s, and the other 4 take as long. */
static void left_is_what_remains_at_the_speed_so_far(void **state)
{
    (void)state;
    struct bench bench = {.experiment = &experiment};
    capture();
    clock_s = 100;
    progress_start(&bench, 8);
    progress_step(&bench, 2, "first");
    clock_s = 110;
    progress_step(&bench, 2, "second");
    clock_s = 130;
    progress_step(&bench, 4, "last");
    progress_end(&bench);
    assert_captured("kvlab: trial:   0 %, first, time left not known yet\n"
                    "kvlab: trial:  25 %, second, about 30 s left\n"
                    "kvlab: trial:  50 %, last, about 30 s left\n");
    progress_free(&bench);
}

/* Half was there already (--resume) and took no time: the speed is that of what was measured. 10 parts of 100 took 100
   s: 40 are left. */
static void skipped_steps_say_nothing_about_speed(void **state)
{
    (void)state;
    struct bench bench = {.experiment = &experiment};
    capture();
    clock_s = 100;
    progress_start(&bench, 100);
    progress_step(&bench, 50, "there already");
    progress_step(&bench, 10, "measured");
    clock_s = 200;
    progress_step(&bench, 40, "the rest");
    progress_end(&bench);
    assert_captured("kvlab: trial:   0 %, there already, time left not known yet\n"
                    "kvlab: trial:  60 %, the rest, about 6 min 40 s left\n");
    progress_free(&bench);
}

static void long_times_are_in_hours(void **state)
{
    (void)state;
    struct bench bench = {.experiment = &experiment};
    capture();
    clock_s = 100;
    progress_start(&bench, 3601);
    progress_step(&bench, 1, "first");
    clock_s = 102.5; /* too soon for another line */
    progress_step(&bench, 1, "second");
    clock_s = 108; /* 4 s a part, 3,599 parts */
    progress_step(&bench, 3599, "third");
    progress_end(&bench);
    assert_captured("kvlab: trial:   0 %, first, time left not known yet\n"
                    "kvlab: trial:   0 %, third, about 3 h 59 min left\n");
    progress_free(&bench);
}

/* At most four repetitions, or, from two on, what 40 s take. The first counts a quarter: nobody knows yet what it
   takes. It takes 20 s, so the second is expected to be the last and counts the rest. Another part of the same weight
   is left. */
static void repetitions_under_a_rule(void **state)
{
    (void)state;
    struct bench bench = {.experiment = &experiment};
    struct repeats repeats = {.rule = {.least = 2, .most = 4, .limit_ms = 40e3}};
    capture();
    clock_s = 100;
    progress_start(&bench, 2);
    repeats_announce(&bench, &repeats, 1, "it");
    for (size_t i = 1; i <= 2; i++) {
        clock_s += 20;
        repeats.count = i;
        repeats.spent_ms = (double)i * 20e3;
        if (i < 2)
            repeats_announce(&bench, &repeats, 1, "it");
        else
            repeats_announce_end(&bench, &repeats, 1, "it");
    }
    progress_step(&bench, 1, "next");
    clock_s += 10;
    progress_step(&bench, 0, "last");
    progress_end(&bench);
    assert_captured("kvlab: trial:   0 %, it, repetition 1 of at most 4, time left not known yet\n"
                    "kvlab: trial:  12 %, it, repetition 2 of at most 4, about 2 min 20 s left\n"
                    "kvlab: trial:  50 %, it, repeated often enough, about 40 s left\n"
                    "kvlab: trial: 100 %, last, about 0 s left\n");
    progress_free(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(left_is_what_remains_at_the_speed_so_far),
        cmocka_unit_test(skipped_steps_say_nothing_about_speed),
        cmocka_unit_test(long_times_are_in_hours),
        cmocka_unit_test(repetitions_under_a_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
