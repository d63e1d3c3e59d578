/* How far a run is, on stderr: one line that is written over on a terminal, plain lines now and then when piped. */
#include "bench/harness/output.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static const double terminal_pause_s = 0.1, piped_pause_s = 5.0, skipped_s = 1e-3;

struct progress {
    bool terminal, line_shown;
    double total, done, current; /* weights */
    double timed, timed_s;       /* weight and seconds of the steps that were really measured */
    double step_at, shown_at;    /* seconds; shown_at < 0: nothing shown yet */
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void progress_start(struct bench *bench, double total_weight)
{
    if (!bench->progress)
        bench->progress = calloc(1, sizeof *bench->progress);
    if (bench->progress) /* without it, a run is silent and otherwise the same */
        *bench->progress = (struct progress){
            .terminal = isatty(STDERR_FILENO), .total = total_weight, .step_at = now_s(), .shown_at = -1};
}

static void left_text(char *text, size_t size, const struct progress *progress)
{
    double left = progress->timed > 0 ? progress->timed_s / progress->timed * (progress->total - progress->done) : -1;
    if (left < 0)
        snprintf(text, size, "time left not known yet");
    else if (left < 60)
        snprintf(text, size, "about %.0f s left", left);
    else if (left < 3600)
        snprintf(text, size, "about %d min %02d s left", (int)left / 60, (int)left % 60);
    else
        snprintf(text, size, "about %d h %02d min left", (int)left / 3600, (int)left / 60 % 60);
}

void progress_step(struct bench *bench, double weight, const char *format, ...)
{
    struct progress *progress = bench->progress;
    if (!progress)
        return;
    double now = now_s();
    progress->done += progress->current;
    if (now - progress->step_at > skipped_s) { /* steps that --resume skips say nothing about the speed */
        progress->timed += progress->current;
        progress->timed_s += now - progress->step_at;
    }
    progress->current = weight;
    progress->step_at = now;
    if (progress->shown_at >= 0 && now - progress->shown_at < (progress->terminal ? terminal_pause_s : piped_pause_s))
        return;
    progress->shown_at = now;

    char what[256], left[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    left_text(left, sizeof left, progress);
    fprintf(stderr, "%skvlab: %s: %3.0f %%, %s, %s%s", progress->terminal ? "\r" : "", bench->experiment->name,
            progress->total > 0 ? 100 * progress->done / progress->total : 0, what, left,
            progress->terminal ? "\033[K" : "\n");
    fflush(stderr);
    progress->line_shown = progress->terminal;
}

void progress_clear(struct bench *bench)
{
    if (bench->progress && bench->progress->line_shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
        bench->progress->line_shown = false;
    }
}

void progress_end(struct bench *bench)
{
    progress_clear(bench);
}

void progress_free(struct bench *bench)
{
    progress_clear(bench);
    free(bench->progress);
    bench->progress = NULL;
}
