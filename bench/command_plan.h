/* Inside `kvlab plan`: what its printers share. */
#ifndef KVLAB_BENCH_COMMAND_PLAN_H
#define KVLAB_BENCH_COMMAND_PLAN_H

#include "engine/plan/plan.h"

enum { WAYS_MAX = 16 };

/* One change to the plan, and what comes of it. */
struct way {
    const struct plan_type *type;
    uint64_t bytes; /* of the item that changes, on the worst stage */
    bool fits;
    int64_t most_users, longest_context;
};

/* The ways out of a plan that does not fit: a shorter context, fewer users, a smaller cache type; and, where the
   weights are what does not fit, smaller weights. */
struct ways_out {
    uint64_t shorter_kv_bytes, fewer_kv_bytes; /* at plan.longest_context, at plan.most_users */
    struct way caches[WAYS_MAX], weights[WAYS_MAX];
    int cache_count, weight_count;
};

struct plan_view {
    const struct plan *plan;
    const struct shape *shape;
    const struct card *card; /* NULL: --budget */
    struct ways_out ways;
};

/* Fills in view->ways. Status 3: out of memory. */
enum status plan_find_ways(struct plan_view *view, struct error *error);

void plan_print(const struct plan_view *view);
void plan_print_json(const struct plan_view *view);

#endif
