/* The page of an audit, results/audit.md: what was found, most interesting first. */
#ifndef KVLAB_BENCH_AUDIT_PAGE_H
#define KVLAB_BENCH_AUDIT_PAGE_H

#include "bench/harness/output.h"
#include "engine/claims/audit.h"

/* Counts by verdict of the rows, whose verdict stands in the column "verdict". */
void audit_counts(const struct results *results, size_t counts[AUDIT_VERDICTS]);

/* Writes `<folder>/audit.md` from the rows, in place of an older one whole. */
enum status audit_page_write(const struct results *results, const char *folder, const char *source,
                             struct error *error);

#endif
