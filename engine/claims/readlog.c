#include "engine/claims/readlog_scan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const verdict_names[] = {
    [READLOG_EXACT] = "exact",         [READLOG_ROUNDED] = "within rounding",
    [READLOG_UNIT_SLIP] = "unit slip", [READLOG_OFF] = "off",
    [READLOG_CAPACITY] = "capacity",   [READLOG_USE] = "use",
    [READLOG_UNCHECKED] = "unchecked",
};

const char *readlog_verdict_name(enum readlog_verdict verdict)
{
    return verdict_names[verdict];
}

static const struct {
    const char *name;
    void (*line)(struct scan *scan, const char *text);
} readers[] = {
    {"llama.cpp", readlog_llama}, {"vllm", readlog_vllm},       {"vllm", readlog_prometheus},
    {"sglang", readlog_sglang},   {"pytorch", readlog_pytorch},
};
const char *const readlog_engines[] = {"llama.cpp", "vllm", "sglang", "pytorch", NULL};

/* A line as it stands in the file, at most READLOG_MAX_LINE bytes of it. */
struct line_buffer {
    char text[READLOG_MAX_LINE + 1];
    size_t length;
};

static bool engine_wanted(const struct scan *scan, const char *name)
{
    return !scan->options->engine || strcmp(scan->options->engine, name) == 0;
}

static void end_line(struct scan *scan, struct line_buffer *line)
{
    line->text[line->length] = 0;
    line->length = 0;
    scan->line++;
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++)
        if (engine_wanted(scan, readers[i].name))
            readers[i].line(scan, line->text);
}

static void feed(struct scan *scan, struct line_buffer *line, const char *bytes, size_t size)
{
    for (size_t i = 0; i < size && !scan->status; i++) {
        if (bytes[i] == '\n')
            end_line(scan, line);
        else if (line->length < READLOG_MAX_LINE)
            line->text[line->length++] = bytes[i] ? bytes[i] : ' '; /* the end of the text is where we say */
    }
}

/* Buffers stand before their cache's total in the file, and are judged after it. */
static int by_line(const void *a, const void *b)
{
    const struct readlog_row *x = a, *y = b;
    if (x->line != y->line)
        return x->line < y->line ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static enum status finish(struct scan *scan, struct line_buffer *line)
{
    if (line->length)
        end_line(scan, line);
    if (engine_wanted(scan, "llama.cpp"))
        readlog_llama_end(scan);
    scan->log->lines = scan->line;
    if (scan->log->count)
        qsort(scan->log->rows, scan->log->count, sizeof *scan->log->rows, by_line);
    if (scan->status)
        readlog_free(scan->log);
    return scan->status;
}

static enum status begin(struct scan *scan, struct line_buffer **line, struct readlog *log,
                         const struct readlog_options *options, struct error *error)
{
    *log = (struct readlog){0};
    *scan = (struct scan){.options = options, .log = log, .error = error};
    *line = malloc(sizeof **line);
    if (!*line)
        return error_set(error, STATUS_DEVICE, "read-log: out of memory");
    (*line)->length = 0;
    return STATUS_OK;
}

enum status readlog_text(struct readlog *log, const char *text, size_t size, const struct readlog_options *options,
                         struct error *error)
{
    struct scan scan;
    struct line_buffer *line;
    if (begin(&scan, &line, log, options, error) != STATUS_OK)
        return error->status;
    feed(&scan, line, text, size);
    enum status status = finish(&scan, line);
    free(line);
    return status;
}

enum status readlog_file(struct readlog *log, const char *path, const struct readlog_options *options,
                         struct error *error)
{
    struct scan scan;
    struct line_buffer *line;
    char bytes[16384];
    size_t got;
    *log = (struct readlog){0};
    FILE *file = fopen(path, "rbe");
    if (!file)
        return error_set(error, STATUS_INPUT, "%s: cannot read: %s", path, strerror(errno));
    enum status status = begin(&scan, &line, log, options, error);
    if (!status) {
        while (!scan.status && (got = fread(bytes, 1, sizeof bytes, file)) > 0)
            feed(&scan, line, bytes, got);
        if (ferror(file) && !scan.status)
            scan.status = error_set(error, STATUS_INPUT, "%s: cannot read: %s", path, strerror(errno));
        status = finish(&scan, line);
        free(line);
    }
    fclose(file);
    return status;
}

void readlog_free(struct readlog *log)
{
    free(log->rows);
    *log = (struct readlog){0};
}
