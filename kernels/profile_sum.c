/* From calls and kernel records to a table: pure arithmetic, so that it can be tested on records that are made up. */
#include "kernels/profile.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct profile_operation *operation_of(struct profile_pass *pass, const char *name)
{
    for (size_t i = 0; i < pass->count; i++)
        if (strcmp(pass->operations[i].name, name) == 0)
            return &pass->operations[i];
    struct profile_operation *added = &pass->operations[pass->count++];
    snprintf(added->name, sizeof added->name, "%s", name);
    return added;
}

/* Adds a kernel's name to the list unless it is there, or nothing more fits. */
static void add_kernel(struct profile_operation *operation, const char *name)
{
    size_t used = strlen(operation->kernels), length = strlen(name);
    for (const char *at = operation->kernels; (at = strstr(at, name)) != NULL; at += length)
        if ((at == operation->kernels || at[-1] == ' ') && (at[length] == '\0' || strncmp(at + length, " + ", 3) == 0))
            return;
    if (used + length + 4 < sizeof operation->kernels)
        snprintf(operation->kernels + used, sizeof operation->kernels - used, "%s%s", used ? " + " : "", name);
}

/* Extends the pass by what ran from start to end; the time since the latest end before it is a gap. */
struct timeline {
    double first_start, last_end;
    int begun;
};

static void extend(struct profile_pass *pass, struct timeline *line, double start_ms, double end_ms)
{
    if (!line->begun) {
        *line = (struct timeline){start_ms, end_ms, 1};
    } else {
        if (start_ms > line->last_end) {
            pass->gap_ms += start_ms - line->last_end;
            pass->gaps++;
        }
        line->last_end = end_ms > line->last_end ? end_ms : line->last_end;
    }
    pass->pass_ms = line->last_end - line->first_start;
}

enum status profile_sum(struct profile_pass *pass, const struct profile_call *calls, size_t count,
                        const struct device_launch *launches, size_t launch_count, struct error *error)
{
    struct timeline line = {0};
    *pass = (struct profile_pass){.timed_by = launches ? "cupti" : "clock"};
    pass->operations = calloc(count + 1, sizeof *pass->operations); /* one for kernels of no known operation */
    if (pass->operations == NULL)
        return error_set(error, STATUS_DEVICE, "profile: out of host memory for %zu operations", count);
    for (size_t i = 0; i < count; i++) {
        struct profile_operation *operation = operation_of(pass, calls[i].name);
        operation->calls++;
        operation->bytes += calls[i].bytes;
        operation->flops += calls[i].flops;
        if (launches != NULL)
            continue;
        operation->ms += calls[i].end_ms - calls[i].start_ms;
        extend(pass, &line, calls[i].start_ms, calls[i].end_ms);
    }
    for (size_t i = 0; launches != NULL && i < launch_count;
         i++) { /* from the first start on, so that differences stay exact */
        const struct device_launch *launch = &launches[i];
        bool known = launch->operation >= 0 && (size_t)launch->operation < count;
        struct profile_operation *operation =
            operation_of(pass, known ? calls[launch->operation].name : "other kernels");
        double start_ms = (double)(launch->start_ns - launches[0].start_ns) / 1e6;
        double end_ms = (double)(launch->end_ns - launches[0].start_ns) / 1e6;
        operation->launches++;
        operation->ms += end_ms - start_ms;
        add_kernel(operation, launch->name);
        extend(pass, &line, start_ms, end_ms);
    }
    return STATUS_OK;
}

void profile_pass_free(struct profile_pass *pass)
{
    free(pass->operations);
    *pass = (struct profile_pass){0};
}
