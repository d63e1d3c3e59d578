/* kvlab info: what this machine is, and how fast it reads, copies and multiplies. */
#include "bench/commands.h"
#include "bench/harness/option_table.h"
#include "bench/harness/session.h"
#include "engine/bytes.h"

#include <inttypes.h>
#include <stdio.h>

#define FIELD(field) .offset = offsetof(struct options, field)

static const struct option_row rows[] = {
    {"device", "NAME", OPTION_TEXT, FIELD(device), .help = "cpu, cuda, cuda:N, or auto (the default)"},
    {"threads", "N", OPTION_INT, FIELD(threads), .maximum = 4096, .help = "CPU threads; 0, the default: all"},
    {"budget", "BYTES", OPTION_BYTES, FIELD(budget_bytes), .help = "use no more memory than this: 12GB, 12GiB"},
    {"quick", NULL, OPTION_FLAG, FIELD(quick), .help = "smaller buffers and matrices"},
    {"help", NULL, OPTION_FLAG, FIELD(help), .help = "this text"},
    {0},
};

static void print_bytes(const char *name, uint64_t bytes)
{
    char text[64];
    printf("%-18s %" PRIu64 " bytes, %s\n", name, bytes, bytes_text(text, sizeof text, bytes));
}

static enum status print_device(const struct bench *bench, struct error *error)
{
    const struct device_info *info = &bench->device->info;
    struct device_memory memory;
    if (bench->device->ops->memory(bench->device, &memory, error) != STATUS_OK)
        return error->status;
    printf("%-18s %s\n%-18s %s\n%-18s %s\n", "device", info->kind, "name", info->name, "features", info->features);
    if (info->driver[0])
        printf("%-18s %s\n", "driver", info->driver);
    if (info->threads)
        printf("%-18s %d\n", "threads", info->threads);
    if (info->multiprocessors)
        printf("%-18s %d\n", "multiprocessors", info->multiprocessors);
    print_bytes("last-level cache", info->l2_bytes);
    print_bytes("page", info->page_bytes);
    print_bytes("memory", info->total_bytes);
    print_bytes("memory free", memory.free_bytes);
    if (memory.process_known)
        print_bytes("this process", memory.process_bytes);
    return STATUS_OK;
}

static enum status print_ceilings(struct bench *bench, struct error *error)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    double rate;
    fflush(stdout); /* the ceilings take seconds */
    if (bench_read_ceiling(bench, &rate, error) != STATUS_OK)
        return error->status;
    printf("%-18s %.1f GB/s\n", "read ceiling", rate);
    if (bench_copy_ceiling(bench, &rate, error) != STATUS_OK)
        return error->status;
    printf("%-18s %.1f GB/s copied (as much read, as much written)\n", "copy ceiling", rate);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        fflush(stdout);
        if (bench_matrix_ceiling(bench, types[i], &rate, error) != STATUS_OK)
            return error->status;
        printf("%s %-11s %.3f TFLOP/s\n", "matrix", dtype_name(types[i]), rate);
    }
    return STATUS_OK;
}

int command_info(int argc, char **argv)
{
    struct bench bench = {.options = {.device = "auto"}};
    struct error error = {0};
    enum status status = option_table_parse(rows, &bench.options, argc, argv, &error);
    if (!status && bench.options.help) {
        puts("usage: kvlab info [options]\n\nThe device, its memory, and its ceilings as measured now.\n\noptions:");
        option_table_help(rows);
        return 0;
    }
    if (!status)
        status = session_open_device(&bench, &error);
    if (!status)
        status = print_device(&bench, &error);
    if (!status)
        status = print_ceilings(&bench, &error);
    session_close_device(&bench);
    return status ? session_fail(&error) : 0;
}
