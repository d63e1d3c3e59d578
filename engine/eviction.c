#include "engine/eviction.h"

#include <assert.h>
#include <stdlib.h>

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

struct eviction_options eviction_recent(int budget, int sinks)
{
    return (struct eviction_options){
        .policy = EVICT_ALL_BUT_RECENT, .budget = budget, .sinks = sinks, .recent = 1, .drop = 1};
}

struct eviction_options eviction_heavy(int budget)
{
    return (struct eviction_options){
        .policy = EVICT_LIGHT_HITTERS, .budget = budget, .recent = (budget + 1) / 2, .drop = 1};
}

struct eviction_options eviction_persistent(int budget)
{
    enum { HISTORY = 400, RECENT = 10 };
    int drop = budget / 2;
    return (struct eviction_options){.policy = EVICT_UNIMPORTANT,
                                     .budget = budget,
                                     .recent = smaller(RECENT, budget - drop),
                                     .drop = drop,
                                     .history = smaller(HISTORY, drop)};
}

bool eviction_observes(const struct eviction_options *options)
{
    return options->policy == EVICT_LIGHT_HITTERS || options->policy == EVICT_UNIMPORTANT;
}

int eviction_surely_from(const struct eviction_options *options, int newest)
{
    if (newest < options->budget)
        return 0;
    if (options->policy == EVICT_ALL_BUT_RECENT)
        return newest - (options->budget - options->sinks) + 1;
    /* The latest drop was before token budget + k * drop; what has come since is all there. */
    int dropped_before = newest - (newest - options->budget) % options->drop;
    return dropped_before - options->recent + 1;
}

enum status eviction_init(struct eviction *eviction, const struct eviction_options *options, int heads,
                          struct error *error)
{
    size_t slots = (size_t)heads * (size_t)options->budget;
    assert(options->policy != EVICT_NOTHING && options->budget >= 2 && options->drop >= 1 && options->recent >= 1);
    assert(options->sinks + options->recent + options->drop <= options->budget + 1);
    assert(options->history <= options->drop);
    *eviction = (struct eviction){.options = *options, .heads = heads};
    eviction->token = calloc(slots, sizeof *eviction->token);
    eviction->score = calloc(slots, sizeof *eviction->score);
    eviction->dropped = calloc((size_t)options->budget, sizeof *eviction->dropped);
    if (eviction->token != NULL && eviction->score != NULL && eviction->dropped != NULL)
        return STATUS_OK;
    eviction_free(eviction);
    return error_set(error, STATUS_DEVICE, "eviction: out of host memory for %zu slots", slots);
}

void eviction_free(struct eviction *eviction)
{
    free(eviction->token);
    free(eviction->score);
    free(eviction->dropped);
    *eviction = (struct eviction){0};
}

void eviction_reset(struct eviction *eviction)
{
    eviction->held = eviction->evicted = 0;
}

int eviction_due(const struct eviction *eviction)
{
    return eviction->held == eviction->options.budget ? eviction->options.drop : 0;
}

/* The slot to give up next: neither a sink, nor recent, nor dropped already. */
static int weakest_slot(const struct eviction *eviction, const int32_t *token, const double *score)
{
    const struct eviction_options *options = &eviction->options;
    int coming = eviction->held + eviction->evicted, weakest = -1;
    for (int slot = 0; slot < eviction->held; slot++) {
        if (eviction->dropped[slot] || token[slot] < options->sinks || token[slot] > coming - options->recent)
            continue;
        if (weakest < 0 || score[slot] < score[weakest] ||
            (score[slot] == score[weakest] && token[slot] < token[weakest]))
            weakest = slot;
    }
    assert(weakest >= 0);
    return weakest;
}

void eviction_drop(struct eviction *eviction, int32_t *from, int32_t *to, int stride)
{
    const struct eviction_options *options = &eviction->options;
    int kept = eviction->held - options->drop;
    for (int head = 0; head < eviction->heads; head++) {
        int32_t *token = eviction->token + (size_t)head * (size_t)options->budget;
        double *score = eviction->score + (size_t)head * (size_t)options->budget;
        int moves = 0;
        for (int slot = 0; slot < eviction->held; slot++)
            eviction->dropped[slot] = false;
        for (int i = 0; i < options->drop; i++)
            eviction->dropped[weakest_slot(eviction, token, score)] = true;
        /* Holes below `kept` are filled from what is kept above it: there are as many of the one as of the other. */
        for (int hole = 0, tail = kept; hole < kept; hole++) {
            if (!eviction->dropped[hole])
                continue;
            while (eviction->dropped[tail])
                tail++;
            token[hole] = token[tail];
            score[hole] = score[tail];
            from[moves * stride + head] = tail++;
            to[moves++ * stride + head] = hole;
        }
        for (; moves < options->drop; moves++)
            from[moves * stride + head] = to[moves * stride + head] = -1;
        for (int slot = 0; options->history > 0 && slot < kept; slot++)
            score[slot] = 0.0;
    }
    eviction->held = kept;
    eviction->evicted += options->drop;
}

void eviction_append(struct eviction *eviction)
{
    assert(eviction->held < eviction->options.budget);
    for (int head = 0; head < eviction->heads; head++) {
        size_t at = (size_t)head * (size_t)eviction->options.budget + (size_t)eviction->held;
        eviction->token[at] = eviction->held + eviction->evicted;
        eviction->score[at] = 0.0;
    }
    eviction->held++;
}

/* H2O adds up a token's attention since it came (algorithm 1: the column sums of the attention matrix). Scissorhands
   counts, in the last `history` steps before a drop, those that gave a token less than the mean 1 / held (algorithm 2);
   as the lowest score is dropped, such a step counts -1. */
void eviction_observe(struct eviction *eviction, const float *mass, int group)
{
    const struct eviction_options *options = &eviction->options;
    bool counts = eviction->held > options->budget - options->history;
    float mean = (float)group / (float)eviction->held;
    for (int head = 0; head < eviction->heads; head++) {
        size_t row = (size_t)head * (size_t)options->budget;
        for (size_t at = row; at < row + (size_t)eviction->held; at++) {
            if (options->policy == EVICT_LIGHT_HITTERS)
                eviction->score[at] += (double)mass[at];
            else if (options->policy == EVICT_UNIMPORTANT && counts && mass[at] < mean)
                eviction->score[at] -= 1.0;
        }
    }
}
