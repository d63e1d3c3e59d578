/* Ctrl-C and SIGTERM set a flag: the run ends between two measurements with whole files. */
#include "bench/harness/session.h"

#include <signal.h>
#include <time.h>

enum { IMPATIENT_SECONDS = 1 };

static volatile sig_atomic_t received; /* the signal's number */
static struct timespec received_at;

/* A second Ctrl-C means now. One that comes at once is the same one: `timeout` and terminals may deliver it twice. */
static void on_signal(int number)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (received && now.tv_sec - received_at.tv_sec > IMPATIENT_SECONDS) {
        signal(number, SIG_DFL);
        raise(number);
    }
    if (!received)
        received_at = now;
    received = number;
}

void signals_install(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, older;
        sigemptyset(&action.sa_mask);
        /* Started with it ignored (nohup, a background job): so it stays. */
        if (sigaction(numbers[i], NULL, &older) == 0 && older.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of write(), with a message of ours */
}

void signals_raise_again(void)
{
    if (!received)
        return;
    signal(received, SIG_DFL);
    raise(received);
}

bool bench_interrupted(void)
{
    return received != 0;
}

const volatile sig_atomic_t *bench_stop_flag(void)
{
    return &received;
}
