/* Serves requests through one model and one cache: who joins the batch, who computes how many tokens in the next
   forward pass, and who gives way when memory runs out.

     static      as many requests as there are slots start together; the next ones once all of them are done
     continuous  a slot is given to the next request as soon as it is free (Yu et al. 2022, Orca: iteration-level
                 scheduling)

   A step is one forward pass over a ragged batch. Requests that decode take one row each, prompts take what is left of
   tokens_per_step (chunked prefill: Agrawal et al. 2024, Sarathi-Serve). Requests are admitted in order of arrival:

     known  when the cache has room for all tokens known so far. When a later one does not fit, the latest admitted
            loses its memory and waits again, first in the queue; what it has produced becomes part of the prompt that
            it computes again (recomputation: Kwon et al. 2023, section 4.5)
     whole  when it has room for all that the request will ever store: nobody gives way, and what is not yet stored
            lies idle meanwhile

   The cache says how memory is kept: exact, reserved or paged, with or without a prefix cache.

   Tokens are chosen greedily. Times are milliseconds of the clock. Not thread-safe. */
#ifndef KVLAB_ENGINE_SCHEDULER_H
#define KVLAB_ENGINE_SCHEDULER_H

#include "engine/forward.h"

enum schedule_policy { SCHEDULE_STATIC, SCHEDULE_CONTINUOUS };

enum schedule_admission { ADMIT_KNOWN, ADMIT_WHOLE };

struct scheduler_options {
    enum schedule_policy policy;
    enum schedule_admission admission;
    int slots;           /* requests in the batch at once; at most the cache's and the model's max_sequences */
    int tokens_per_step; /* rows of a forward pass; at least `slots`, at most the model's max_rows */
};

/* What time is it, and how does time pass while there is nothing to do? Both may fail as a device can. */
struct scheduler_clock {
    void *context;
    enum status (*read)(void *context, double *ms, struct error *error);
    enum status (*wait_until)(void *context, double ms, struct error *error);
};

struct request {
    int32_t *tokens; /* host [prompt_tokens + output_tokens]: the prompt; what is chosen is written after it */
    int prompt_tokens, output_tokens; /* > 0 */
    double arrival_ms;
    /* Filled in. Queue time is a part of the time to first token: admitted - arrival of first_token - arrival. */
    double admitted_ms; /* the first time */
    double first_token_ms, finished_ms;
    int produced;    /* tokens chosen so far; output_tokens: finished */
    int hit_tokens;  /* of the prompt, found in the prefix cache when first admitted */
    int preemptions; /* times that it lost its memory */
};

/* What one slot did in a step. */
struct slot_record {
    const struct request *request; /* NULL: nobody's */
    int rows;                      /* tokens that went through the model */
    bool chose;                    /* and the next one was chosen */
};

struct step_record {
    double start_ms, end_ms;
    int rows;                        /* 0: there was nothing left to do */
    int cells;                       /* slots, each of which could have computed */
    int slots_in_use;                /* those with a request */
    int idle_cells;                  /* those of which no token went through the model */
    int admitted, preempted;         /* requests */
    int finished;                    /* requests */
    int kv_blocks;                   /* paged: blocks that requests held during the pass */
    const struct slot_record *slots; /* [options.slots]; until the next step */
};

struct scheduler;

/* Borrows model, cache and clock. Takes the logits of one row per slot. Status 2 where the options do not fit them. */
enum status scheduler_open(struct scheduler **scheduler, struct model *model, struct kv_cache *cache,
                           const struct scheduler_options *options, const struct scheduler_clock *clock,
                           struct error *error);
void scheduler_close(struct scheduler *scheduler); /* requests that run lose their memory; takes NULL */

/* Queues a request behind the others; it arrives no earlier than they do. Borrowed until it is finished. Status 2 where
   it is too long for the cache even alone. */
enum status scheduler_submit(struct scheduler *scheduler, struct request *request, struct error *error);

/* Requests that are queued or run. */
int scheduler_pending(const struct scheduler *scheduler);

/* One step; waits for the next arrival if nothing has arrived. Status 3 where a request does not fit the memory budget
   even alone; 130 if model->stop is set. */
enum status scheduler_step(struct scheduler *scheduler, struct step_record *step, struct error *error);

#endif
