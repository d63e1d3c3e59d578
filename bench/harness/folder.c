/* The folder of results: made, held by one run of an experiment at a time, cleared of what a killed run left. */
#include "bench/harness/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Is the locked file still the one at its path? The run that held it before may have removed it since we opened it. */
static bool is_at(int descriptor, const char *path)
{
    struct stat ours, there;
    return fstat(descriptor, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

static enum status lock(struct output *output, const char *folder, const char *name, struct error *error)
{
    if (asprintf(&output->lock_path, "%s/.%s.lock", folder, name) < 0) {
        output->lock_path = NULL;
        return error_set(error, STATUS_DEVICE, "%s: out of memory", folder);
    }
    for (;;) {
        int descriptor =
            open(output->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
        if (descriptor < 0)
            return error_set(error, STATUS_INPUT, "%s: cannot write: %s; give another folder with --out",
                             output->lock_path, strerror(errno));
        int failed = flock(descriptor, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
        if (failed == EWOULDBLOCK) {
            close(descriptor);
            return error_set(error, STATUS_INPUT,
                             "%s/%s.csv: another kvlab run is writing it; wait for its end, or give another folder "
                             "with --out",
                             folder, name);
        }
        /* Any other failure: a file system without locks, where runs are trusted to be one at a time. */
        if (failed || is_at(descriptor, output->lock_path)) {
            output->lock = descriptor;
            return STATUS_OK;
        }
        close(descriptor);
    }
}

void folder_release(struct output *output)
{
    if (output->lock >= 0) {
        unlink(output->lock_path); /* while it is held: whoever opened it sees that it is gone */
        close(output->lock);
    }
    free(output->lock_path);
    output->lock = -1;
    output->lock_path = NULL;
}

/* <experiment><suffix>.csv.XXXXXX and .meta.json.XXXXXX: row_file_create()'s temporaries. */
static bool is_leftover(const struct experiment *experiment, const char *name)
{
    static const char *const endings[] = {".csv.", ".meta.json."};
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t stem = strlen(experiment->name);
    if (strncmp(name, experiment->name, stem) != 0)
        return false;
    for (size_t t = 0; t < experiment->table_count; t++)
        for (size_t e = 0; e < sizeof endings / sizeof *endings; e++) {
            size_t suffix = strlen(experiment->tables[t].suffix), ending = strlen(endings[e]);
            const char *rest = name + stem;
            if (strncmp(rest, experiment->tables[t].suffix, suffix) == 0 &&
                strncmp(rest + suffix, endings[e], ending) == 0 && strlen(rest + suffix + ending) == 6 &&
                strspn(rest + suffix + ending, letters) == 6)
                return true;
        }
    return false;
}

static void sweep(const struct experiment *experiment, const char *folder)
{
    DIR *directory = opendir(folder);
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (is_leftover(experiment, entry->d_name))
            (void)!unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory)
        closedir(directory);
}

/* Status 2 where no file of some length can be written there. */
static enum status probe(const char *folder, const char *name, struct error *error)
{
    static const char zeros[4096];
    char *path;
    if (asprintf(&path, "%s/%s.csv", folder, name) < 0)
        return error_set(error, STATUS_DEVICE, "%s: out of memory", folder);
    struct row_file file;
    enum status status = row_file_create(&file, path, error);
    if (!status)
        status = row_file_append(&file, zeros, sizeof zeros, error);
    if (!status)
        status = row_file_make_ready(&file, error);
    row_file_close(&file);
    free(path);
    return status;
}

enum status folder_make_ready(struct output *output, const struct experiment *experiment, const char *folder,
                              struct error *error)
{
    enum status status = make_folders(folder, error);
    if (!status)
        status = lock(output, folder, experiment->name, error);
    if (!status)
        sweep(experiment, folder);
    return status ? status : probe(folder, experiment->name, error);
}
