/* Inside plan_make(): the request made whole, the layers on their devices, the items weighed. */
#ifndef KVLAB_ENGINE_PLAN_PLAN_PARTS_H
#define KVLAB_ENGINE_PLAN_PLAN_PARTS_H

#include "engine/plan/plan.h"

/* ---- plan_defaults.c */
const struct plan_type *plan_cache_type(const char *name); /* one that exists */
/* What the model computes in: the type asked for, where that is a plain one, else the published. */
const char *plan_working_type(const struct plan_request *request);
bool plan_is_llamacpp(enum engine engine);
bool plan_is_torch(enum engine engine);
/* Fills in what the request leaves to the engine. */
void plan_resolve(struct plan_request *request);
/* plan->stages[].first and .end. Status 2: the stages are not the layers. */
enum status plan_lay_out_stages(struct plan *plan, struct error *error);
const char *plan_stage_rule(const struct plan_request *request);
/* Status 2: the engine cannot divide this model over so many ranks. */
enum status plan_check_ranks(const struct plan_request *request, struct error *error);

/* ---- plan_items.c */
struct kv_demand plan_demand(const struct plan_request *request, const struct plan_stage *stage);
/* bytes[], total and layout of stage `s` at this context and so many users; the plan itself is not changed. */
void plan_weigh_stage(const struct plan *plan, struct plan_stage *stage, int64_t s, int64_t context, int64_t users,
                      bool *overflow);
/* Is the item beside the fraction of the memory that the engine plans with? */
bool plan_outside_fraction(const struct plan_request *request, enum plan_item item);
void plan_say_sources(struct plan *plan);

#endif
