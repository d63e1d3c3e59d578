#include "bench/harness/timeline.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>

void timeline_note(struct span *spans, const struct serving *serving, const struct step_record *step, int at)
{
    for (int slot = 0; slot < step->cells; slot++) {
        if (!step->slots[slot].request)
            continue;
        struct span *span = &spans[serving_number(serving, step->slots[slot].request)];
        if (!span->steps)
            *span = (struct span){.slot = slot, .first_step = at};
        span->steps = at - span->first_step + 1;
    }
}

/* Whose letter stands for the moment `step`, in steps. */
static char letter_at(const struct span *spans, const char *letters, int requests, int slot, double step)
{
    int nth = 0;
    for (int r = 0; r < requests; r++) {
        if (spans[r].slot != slot || !spans[r].steps)
            continue;
        if (step >= spans[r].first_step && step < spans[r].first_step + spans[r].steps)
            return (char)(nth % 2 ? toupper(letters[r]) : letters[r]);
        nth++;
    }
    return '.';
}

void timeline_print(const struct span *spans, const char *letters, int requests, int slots, int64_t steps, int width)
{
    double per_letter = fmax(1.0, (double)steps / width);
    for (int slot = 0; slot < slots; slot++) {
        fprintf(stderr, "  slot %2d  ", slot);
        for (int column = 0; column < width; column++)
            fputc(letter_at(spans, letters, requests, slot, (column + 0.5) * per_letter), stderr);
        fputc('\n', stderr);
    }
}
