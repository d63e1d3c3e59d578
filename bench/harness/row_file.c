#include "bench/harness/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ftruncate() may itself fail, and there is nothing left to try then. */
static void cut_back(int descriptor, off_t end)
{
    if (ftruncate(descriptor, end) == 0)
        lseek(descriptor, end, SEEK_SET);
}

/* Nothing but a regular file is replaced: a folder cannot be, and a FIFO or a device is somebody's. */
enum status row_file_check_target(const char *path, struct error *error)
{
    struct stat facts;
    if (stat(path, &facts) != 0 || S_ISREG(facts.st_mode))
        return STATUS_OK;
    return error_set(error, STATUS_INPUT, "%s: %s stands there, and no file to replace; move it, or give another --out",
                     path, S_ISDIR(facts.st_mode) ? "a folder" : "something else");
}

enum status row_file_create(struct row_file *file, const char *path, struct error *error)
{
    *file = (struct row_file){.descriptor = -1};
    if (row_file_check_target(path, error) != STATUS_OK)
        return error->status;
    *file = (struct row_file){.descriptor = -1, .path = strdup(path)};
    /* Beside it: a rename is atomic only within one file system. A name of its own: two runs do not meet. */
    if (!file->path || asprintf(&file->temporary, "%s.XXXXXX", path) < 0) {
        file->temporary = NULL;
        row_file_close(file);
        error_set(error, STATUS_DEVICE, "%s: out of memory", path);
        return STATUS_DEVICE;
    }
    file->descriptor = mkostemp(file->temporary, O_CLOEXEC);
    if (file->descriptor < 0) {
        error_set(error, STATUS_INPUT, "%s: cannot write: %s; give another folder with --out", path, strerror(errno));
        row_file_close(file);
        return STATUS_INPUT;
    }
    mode_t mask = umask(0); /* mkstemp makes private files; results are ordinary ones */
    umask(mask);
    (void)!fchmod(file->descriptor, 0666 & ~mask);
    return STATUS_OK;
}

enum status row_file_append(struct row_file *file, const char *text, size_t length, struct error *error)
{
    for (size_t done = 0; done < length;) {
        ssize_t written = write(file->descriptor, text + done, length - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            int reason = written < 0 ? errno : ENOSPC;
            cut_back(file->descriptor, file->end);
            return error_set(error, STATUS_INPUT, "%s: cannot write: %s; make room or give another folder with --out%s",
                             file->path, strerror(reason), file->in_place ? " (the rows so far are kept)" : "");
        }
        done += (size_t)written;
    }
    file->end += (off_t)length;
    return STATUS_OK;
}

enum status row_file_make_ready(struct row_file *file, struct error *error)
{
    if (row_file_check_target(file->path, error) != STATUS_OK)
        return error->status;
    if (fsync(file->descriptor) != 0 && errno != EINVAL) /* EINVAL: a file system that has no fsync() */
        return error_set(error, STATUS_INPUT, "%s: cannot write: %s", file->path, strerror(errno));
    return STATUS_OK;
}

enum status row_file_put_in_place(struct row_file *file, struct error *error)
{
    if (file->in_place)
        return STATUS_OK;
    /* The old file goes only when the new one is really on disk. */
    if (row_file_make_ready(file, error) != STATUS_OK)
        return error->status;
    if (rename(file->temporary, file->path) != 0)
        return error_set(error, STATUS_INPUT, "%s: cannot write: %s", file->path, strerror(errno));
    file->in_place = true;
    return STATUS_OK;
}

enum status row_file_check(const struct row_file *file, struct error *error)
{
    struct stat ours, there;
    if (file->descriptor < 0 || !file->in_place)
        return STATUS_OK;
    if (fstat(file->descriptor, &ours) == 0 && stat(file->path, &there) == 0 && ours.st_dev == there.st_dev &&
        ours.st_ino == there.st_ino)
        return STATUS_OK;
    return error_set(error, STATUS_INPUT,
                     "%s: it was deleted or replaced while this run wrote it, and the rows of this run are lost; "
                     "measure again",
                     file->path);
}

/* Bytes up to the last line end: what a killed run or a full disk left after it is no line. */
static enum status find_end(struct row_file *file, off_t size, struct error *error)
{
    char bytes[4096];
    for (file->end = size; file->end > 0;) {
        off_t from = file->end > (off_t)sizeof bytes ? file->end - (off_t)sizeof bytes : 0;
        ssize_t got = pread(file->descriptor, bytes, (size_t)(file->end - from), from);
        if (got <= 0)
            return error_set(error, STATUS_INPUT, "%s: cannot read: %s", file->path, strerror(errno));
        const char *newline = memrchr(bytes, '\n', (size_t)got);
        file->end = newline ? from + (newline - bytes) + 1 : from;
        if (newline)
            break;
    }
    return STATUS_OK;
}

enum status row_file_open(struct row_file *file, const char *path, bool *made, struct error *error)
{
    struct stat facts;
    *file = (struct row_file){.descriptor = -1, .path = strdup(path), .in_place = true};
    if (!file->path)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", path);
    /* O_NONBLOCK: no wait for a FIFO's reader. */
    static const int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    file->descriptor = open(path, flags | O_CREAT | O_EXCL, 0666);
    *made = file->descriptor >= 0;
    if (!*made && errno == EEXIST)
        file->descriptor = open(path, flags | O_CREAT, 0666);
    enum status status = STATUS_OK;
    if (file->descriptor < 0 || fstat(file->descriptor, &facts) != 0)
        status = error_set(error, STATUS_INPUT, "%s: cannot write: %s", path, strerror(errno));
    else if (!S_ISREG(facts.st_mode))
        status = error_set(error, STATUS_INPUT, "%s: not a regular file; give the path of a file", path);
    else
        status = find_end(file, facts.st_size, error);
    if (status)
        row_file_close(file);
    return status;
}

enum status row_file_cut(struct row_file *file, off_t end, struct error *error)
{
    if (ftruncate(file->descriptor, end) != 0)
        return error_set(error, STATUS_INPUT, "%s: cannot write: %s", file->path, strerror(errno));
    file->end = end;
    return STATUS_OK;
}

void row_file_close(struct row_file *file)
{
    if (file->descriptor >= 0) {
        close(file->descriptor);
        if (!file->in_place && file->temporary)
            unlink(file->temporary);
    }
    free(file->temporary);
    free(file->path);
    *file = (struct row_file){.descriptor = -1};
}
