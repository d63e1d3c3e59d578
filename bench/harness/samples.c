/* Raw samples: one CSV of every experiment's shape, named by the user and therefore never taken for granted. */
#include "bench/harness/output.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char header[] = "experiment,setting,repetition,value,unit\n";

/* Is it another file of this run: a table, its meta file, the lock, or what stdout or stderr is sent to? */
static bool is_of_this_run(const struct bench *bench, const struct stat *file)
{
    static const char *const endings[] = {".csv", ".meta.json"};
    const struct experiment *experiment = bench->experiment;
    struct stat other;
    bool same = fstat(bench->output->lock, &other) == 0 && other.st_dev == file->st_dev && other.st_ino == file->st_ino;
    for (int stream = STDOUT_FILENO; !same && stream <= STDERR_FILENO; stream++)
        same = fstat(stream, &other) == 0 && other.st_dev == file->st_dev && other.st_ino == file->st_ino;
    for (size_t i = 0; !same && i < experiment->table_count * 2; i++) {
        char *path;
        if (asprintf(&path, "%s/%s%s%s", bench->options.out, experiment->name, experiment->tables[i / 2].suffix,
                     endings[i % 2]) < 0)
            return true;
        same = stat(path, &other) == 0 && other.st_dev == file->st_dev && other.st_ino == file->st_ino;
        free(path);
    }
    return same;
}

/* An existing file is replaced only if samples are what it holds. */
static enum status check(const struct bench *bench, const struct row_file *file, struct error *error)
{
    struct stat facts;
    char begin[sizeof header] = "";
    if (fstat(file->descriptor, &facts) != 0)
        return error_set(error, STATUS_INPUT, "--samples: %s: %s", file->path, strerror(errno));
    if (is_of_this_run(bench, &facts))
        return error_set(error, STATUS_INPUT, "--samples: %s is written by this run already; give a file of its own",
                         file->path);
    if (facts.st_size == 0 ||
        (pread(file->descriptor, begin, sizeof header - 1, 0) == sizeof header - 1 && strcmp(begin, header) == 0))
        return STATUS_OK;
    return error_set(error, STATUS_INPUT,
                     "--samples: %s holds something else than samples, and is left as it is; give another file",
                     file->path);
}

/* The file is only opened: what it held stays until the first sample comes. */
enum status samples_open(struct bench *bench, struct error *error)
{
    struct samples *samples = &bench->output->samples;
    if (row_file_open(&samples->file, bench->options.samples, &samples->made, error) != STATUS_OK)
        return error_prefix(error, "--samples");
    samples->open = true;
    return check(bench, &samples->file, error);
}

void samples_close(struct samples *samples)
{
    if (samples->open && samples->made && !samples->begun)
        unlink(samples->file.path);
    if (samples->open)
        row_file_close(&samples->file);
    *samples = (struct samples){0};
}

static enum status begin(struct samples *samples, bool resume, struct error *error)
{
    enum status status = row_file_cut(&samples->file, resume ? samples->file.end : 0, error);
    if (!status && samples->file.end == 0)
        status = row_file_append(&samples->file, header, sizeof header - 1, error);
    samples->begun = !status;
    return status;
}

enum status samples_add(struct bench *bench, const char *setting, int repetition, double value, const char *unit,
                        struct error *error)
{
    struct samples *samples = &bench->output->samples;
    assert((bench->experiment->uses & USES_SAMPLES) && "the experiment's uses lack --samples");
    if (!samples->open)
        return STATUS_OK;
    char repetition_text[16], value_text[32];
    snprintf(repetition_text, sizeof repetition_text, "%d", repetition);
    snprintf(value_text, sizeof value_text, "%.9g", value);
    const char *cells[] = {bench->experiment->name, setting, repetition_text, value_text, unit};
    size_t length;
    char *line = csv_line(cells, (const bool[]){true, true, false, false, true}, 5, &length);
    if (!line)
        return error_set(error, STATUS_DEVICE, "--samples: out of memory");
    enum status status = samples->begun ? STATUS_OK : begin(samples, bench->options.resume, error);
    if (!status)
        status = row_file_check(&samples->file, error);
    if (!status)
        status = row_file_append(&samples->file, line, length, error);
    free(line);
    return status ? error_prefix(error, "--samples") : STATUS_OK;
}
