/* kvlab's command line. */
#include "bench/commands.h"
#include "bench/harness/session.h"
#include "bench/version.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int command_run(int argc, char **argv);
static int command_profile(int argc, char **argv);

static const struct command {
    const char *name, *arguments, *summary;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"list", "[models]", "the experiments, or the models that ship", command_list},
    {"info", "[options]", "this machine: device, memory, and its ceilings, measured", command_info},
    {"run", "NAME [options]", "run an experiment: predict, measure, write results/NAME.csv", command_run},
    {"profile", "[options]", "short for `run profile`: where the time of a pass goes", command_profile},
    {"generate", "\"text\" [options]", "continue a text, or token ids, with a model", command_generate},
    {"plan", "[options]", "what a model takes on a card, whether it fits, and what would", command_plan},
    {"audit", "FILE.csv", "recompute published numbers, and say which are wrong", command_audit},
    {"read-log", "FILE", "what other engines' logs say of their cache, against the formula", command_readlog},
    {"compare", "A.csv B.csv", "two result files side by side, with ratios", command_compare},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(void)
{
    printf("kvlab " KVLAB_VERSION ": what a KV cache costs, predicted, counted and measured on this machine\n\n");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  kvlab %-8s %-15s %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
    printf("  kvlab --version\n\n"
           "Each has --help. Exit status: 0 done, 1 a check failed, 2 bad usage or input, 3 the device could not.\n");
}

static int fail_with_list(const char *what, const char *word, const char *known)
{
    struct error error;
    error_set(&error, STATUS_INPUT, "%s%s%s%s; there are %s", what, word ? " \"" : "", word ? word : "",
              word ? "\"" : "", known);
    return session_fail(&error);
}

static int command_run(int argc, char **argv)
{
    char known[512] = "";
    for (const struct experiment *const *experiment = experiments; *experiment; experiment++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", (*experiment)->name);
    }
    if (argc > 0 && strcmp(argv[0], "--help") == 0) {
        printf(
            "usage: kvlab run NAME [options]\n\nNAME is one of %s;\n`kvlab list` says what each shows, "
            "`kvlab run NAME --help` what it writes and which of --contexts, --batch, --new-tokens and --reps it has."
            "\n\noptions:\n",
            known);
        options_print_help(USES_ALL, NULL);
        return 0;
    }
    const struct experiment *experiment = argc > 0 ? experiment_find(argv[0]) : NULL;
    if (!experiment)
        return fail_with_list(argc > 0 ? "no experiment" : "run: name an experiment", argc > 0 ? argv[0] : NULL, known);
    return bench_main(experiment, argc - 1, argv + 1);
}

static int command_profile(int argc, char **argv)
{
    return bench_main(experiment_find("profile"), argc, argv);
}

static int dispatch(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (word && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0)) {
        print_help();
        return 0;
    }
    if (word && strcmp(word, "--version") == 0) {
        puts("kvlab " KVLAB_VERSION);
        return 0;
    }
    for (size_t i = 0; word && i < COMMANDS; i++)
        if (strcmp(commands[i].name, word) == 0)
            return commands[i].run(argc - 2, argv + 2);
    return fail_with_list(word ? "no command" : "give a command", word,
                          "list, info, run, generate, profile, plan, audit, read-log, compare, --help, --version");
}

/* A results file must not get the number of a stream that the shell closed (2>&-), or messages would go into it. What
   is opened here fails as a closed stream does: stdout cannot be written, and session_flush_stdout() says so. */
static void open_closed_streams(void)
{
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        if (fcntl(stream, F_GETFD) == -1 && errno == EBADF)
            (void)!open("/dev/null",
                        stream == STDERR_FILENO ? O_WRONLY : O_RDONLY); /* the lowest number that is free */
}

/* A thread that waits for work spins for 300,000 rounds, milliseconds, unless libgomp was told otherwise when it was
   loaded. On a machine with other processes, even those of lowest priority, that uses up a thread's turn of the
   processor: a decode step's products were seen to take 70 times as long (results/reference/cpu-notes.md). So the
   program starts itself anew with 2,000 rounds; where it cannot, or was started by another program (a loader), it goes
   on as it is. */
static void spin_briefly(char **argv)
{
    char path[PATH_MAX];
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") || !argv[0])
        return;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return;
    path[length] = '\0';
    const char *own = strrchr(path, '/'), *called = strrchr(argv[0], '/');
    if (own && strcmp(own + 1, called ? called + 1 : argv[0]) == 0 && setenv("GOMP_SPINCOUNT", "2000", 1) == 0)
        (void)execv(path, argv);
}

int main(int argc, char **argv)
{
    open_closed_streams();
    spin_briefly(argv);
    return session_flush_stdout(dispatch(argc, argv));
}
