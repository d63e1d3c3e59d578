/* The commands of kvlab beside `run`. Each takes the words after its own and returns the exit status. */
#ifndef KVLAB_BENCH_COMMANDS_H
#define KVLAB_BENCH_COMMANDS_H

int command_list(int argc, char **argv);
int command_info(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_plan(int argc, char **argv);
int command_audit(int argc, char **argv);
int command_readlog(int argc, char **argv);
int command_compare(int argc, char **argv);

#endif
