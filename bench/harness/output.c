/* Opening the results folder, notes on stderr, raw samples. */
#include "bench/harness/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char samples_header[] = "experiment,setting,repetition,value,unit\n";

/* The file is only opened, in append mode: what it held stays until the first sample comes. */
static enum status open_samples(struct bench *bench, struct error *error)
{
    const char *path = bench->options.samples;
    bench->output->samples = fopen(path, "abe");
    if (!bench->output->samples)
        return error_set(error, STATUS_INPUT, "--samples: %s: cannot write: %s", path, strerror(errno));
    return STATUS_OK;
}

enum status output_open(struct bench *bench, struct error *error)
{
    bench->output = calloc(1, sizeof *bench->output);
    if (!bench->output)
        return error_set(error, STATUS_DEVICE, "out of memory");
    if (bench->options.dry_run)
        return STATUS_OK;
    char name[128];
    snprintf(name, sizeof name, "%s.csv", bench->experiment->name);
    enum status status = folder_make_ready(bench->options.out, name, error);
    return status || !bench->options.samples ? status : open_samples(bench, error);
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

enum status samples_add(struct bench *bench, const char *setting, int repetition, double value, const char *unit,
                        struct error *error)
{
    FILE *file = bench->output->samples;
    if (!file)
        return STATUS_OK;
    if (!bench->output->samples_begun) {
        bool fresh = !bench->options.resume && ftruncate(fileno(file), 0) == 0;
        if (fresh || lseek(fileno(file), 0, SEEK_END) == 0)
            fputs(samples_header, file);
        bench->output->samples_begun = true;
    }
    char repetition_text[16], value_text[32];
    snprintf(repetition_text, sizeof repetition_text, "%d", repetition);
    snprintf(value_text, sizeof value_text, "%.9g", value);
    const char *cells[] = {bench->experiment->name, setting, repetition_text, value_text, unit};
    size_t length;
    char *line = csv_line(cells, (const bool[]){true, true, false, false, true}, 5, &length);
    bool written = line && fwrite(line, 1, length, file) == length;
    free(line);
    if (!written || fflush(file) != 0)
        return error_set(error, STATUS_INPUT, "--samples: %s: cannot write: %s", bench->options.samples,
                         strerror(errno));
    return STATUS_OK;
}
