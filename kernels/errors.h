/* Errors as values: library code returns a status and fills in a message; only main() prints and exits.
   A message is one line that says what went wrong, where (path, offset, option) and the way out. One that is too long
   loses the beginnings of its longest words, paths mostly, and never its end. */
#ifndef KVLAB_KERNELS_ERRORS_H
#define KVLAB_KERNELS_ERRORS_H

#ifdef __cplusplus
extern "C" {
#endif

/* The values are the exit statuses of kvlab. */
enum status {
    STATUS_OK = 0,
    STATUS_CHECK_FAILED = 1,  /* the measurement ran and a check failed */
    STATUS_INPUT = 2,         /* bad usage or bad input */
    STATUS_DEVICE = 3,        /* the device could not do it: absent, out of memory, a failed call */
    STATUS_INTERRUPTED = 130, /* Ctrl-C or a termination signal; what was measured so far is kept */
};

struct error {
    enum status status;
    char message[1024];
};

/* Fills in `error` and gives `status`, so that a failure reads `return error_set(error, STATUS_INPUT, "...", ...)`. A
   macro, so that compilers and analysers see which status that is. */
#define error_set(error, status, ...) error_status(error_write((error), (status), __VA_ARGS__), (status))
int error_write(struct error *error, enum status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static inline enum status error_status(int written, enum status status)
{
    (void)written;
    return status;
}

/* Puts "context: " before the message that is already there; returns its status. */
enum status error_prefix(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif
#endif
