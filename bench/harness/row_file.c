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

enum status row_file_create(struct row_file *file, const char *path, struct error *error)
{
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

enum status row_file_put_in_place(struct row_file *file, struct error *error)
{
    if (file->in_place)
        return STATUS_OK;
    /* The old file goes only when the new one is really on disk. EINVAL: a file system that has no fsync(). */
    if ((fsync(file->descriptor) != 0 && errno != EINVAL) || rename(file->temporary, file->path) != 0)
        return error_set(error, STATUS_INPUT, "%s: cannot write: %s", file->path, strerror(errno));
    file->in_place = true;
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

/* mkdir -p */
static enum status make_folders(const char *folder, struct error *error)
{
    char *path = strdup(folder);
    if (!path)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", folder);
    enum status status = STATUS_OK;
    for (char *slash = path + 1; !status && slash; slash++) {
        slash = strchr(slash, '/');
        if (slash)
            *slash = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            status = error_set(error, STATUS_INPUT, "%s: cannot make this folder: %s; give another with --out", folder,
                               strerror(errno));
        if (!slash)
            break;
        *slash = '/';
    }
    free(path);
    return status;
}

enum status folder_make_ready(const char *folder, const char *name, struct error *error)
{
    static const char zeros[4096];
    enum status status = make_folders(folder, error);
    if (status)
        return status;
    char *path;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", folder);
    struct row_file probe;
    status = row_file_create(&probe, path, error);
    if (!status)
        status = row_file_append(&probe, zeros, sizeof zeros, error);
    if (!status && fsync(probe.descriptor) != 0 && errno != EINVAL)
        status = error_set(error, STATUS_INPUT, "%s: cannot write: %s", path, strerror(errno));
    row_file_close(&probe);
    free(path);
    return status;
}
