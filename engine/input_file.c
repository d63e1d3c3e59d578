#include "engine/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum status input_file_descriptor(const char *path, const char *way_out, int *descriptor, off_t *bytes,
                                  struct error *error)
{
    struct stat facts;
    *descriptor =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* O_NONBLOCK: no wait for a FIFO's writer */
    if (*descriptor < 0)
        return error_set(error, STATUS_INPUT, "%s: cannot read: %s", path, strerror(errno));
    enum status status = STATUS_OK;
    if (fstat(*descriptor, &facts) != 0)
        status = error_set(error, STATUS_INPUT, "%s: cannot be read: %s", path, strerror(errno));
    else if (!S_ISREG(facts.st_mode))
        status = error_set(error, STATUS_INPUT, "%s: not a regular file; %s", path, way_out);
    else if (bytes)
        *bytes = facts.st_size;
    if (status != STATUS_OK) {
        close(*descriptor);
        *descriptor = -1;
    }
    return status;
}

enum status input_file_open(const char *path, const char *way_out, FILE **file, off_t *bytes, struct error *error)
{
    int descriptor;
    *file = NULL;
    if (input_file_descriptor(path, way_out, &descriptor, bytes, error) != STATUS_OK)
        return error->status;
    *file = fdopen(descriptor, "rb");
    if (*file)
        return STATUS_OK;
    error_set(error, STATUS_DEVICE, "%s: cannot be opened: %s", path, strerror(errno));
    close(descriptor);
    return STATUS_DEVICE;
}
