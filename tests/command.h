/* Running the binary under test, as a shell would. */
#ifndef KVLAB_TESTS_COMMAND_H
#define KVLAB_TESTS_COMMAND_H

struct command_outcome {
    int status; /* exit status; -1 where a signal ended it */
    char *out, *err;
};

/* `kvlab <arguments>`, split by a shell. A fresh folder for its files is command_folder(). Fails the test where it does
   not start. */
struct command_outcome command_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
void command_free(struct command_outcome *outcome);

/* Ends with `status` and one line on stderr that has `word`, and says nothing on stdout. */
void command_refuses(int status, const char *word, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A folder in /tmp that command_cleanup() removes with what lies in it. */
const char *command_folder(void);
int command_setup(void **state);
int command_cleanup(void **state);

char *command_read(const char *path); /* a whole file, NUL-terminated; the caller frees */
void command_write(const char *path, const void *data, unsigned long size);

#endif
