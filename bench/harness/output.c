/* Opening the results folder, notes on stderr. */
#include "bench/harness/output.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum status output_open(struct bench *bench, struct error *error)
{
    bench->output = calloc(1, sizeof *bench->output);
    if (!bench->output)
        return error_set(error, STATUS_DEVICE, "out of memory");
    bench->output->lock = -1;
    if (bench->options.dry_run)
        return STATUS_OK;
    enum status status = folder_make_ready(bench->output, bench->experiment, bench->options.out, error);
    return status || !bench->options.samples ? status : samples_open(bench, error);
}

void output_note(struct bench *bench, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct output *output = bench->output;
    for (size_t i = 0; output && i < output->note_count; i++)
        if (strcmp(output->notes[i], text) == 0)
            return;
    char *copy = output && output->note_count < sizeof output->notes / sizeof output->notes[0] ? strdup(text) : NULL;
    if (copy)
        output->notes[output->note_count++] = copy;
    progress_clear(bench);
    fprintf(stderr, "kvlab: %s\n", text);
}
