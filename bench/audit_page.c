#include "bench/audit_page.h"

#include <stdlib.h>
#include <string.h>

/* In the order of the page. */
static const struct {
    enum audit_verdict verdict;
    const char *title, *meaning;
} sections[] = {
    {AUDIT_WRONG, "Wrong", "The inputs give another number, in whatever unit."},
    {AUDIT_UNIT_SLIP, "Unit slips", "The right number, printed with the wrong unit."},
    {AUDIT_NOT_COMPUTABLE, "Not computable", "An input is missing, or the model is unknown."},
    {AUDIT_ROUNDED, "Rounded", "Correct to the digits printed."},
    {AUDIT_EXACT, "Exact", "Correct to the last digit of the value itself."},
};
enum { SECTIONS = sizeof sections / sizeof sections[0] };

void audit_counts(const struct results *results, size_t counts[AUDIT_VERDICTS])
{
    memset(counts, 0, AUDIT_VERDICTS * sizeof *counts);
    for (size_t row = 0; row < results->row_count; row++)
        for (int i = 0; i < AUDIT_VERDICTS; i++)
            counts[i] += strcmp(results_text(results, row, "verdict"), audit_verdict_name((enum audit_verdict)i)) == 0;
}

/* A cell of a Markdown table: bars and line ends would break it, angle brackets would be taken for HTML. */
static void put(FILE *page, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '|' || *c == '\\' || *c == '*' || *c == '_' || *c == '`')
            fputc('\\', page);
        if (*c == '<')
            fputs("&lt;", page);
        else
            fputc(*c == '\n' || *c == '\r' ? ' ' : *c, page);
    }
}

static void put_row(FILE *page, const struct results *results, size_t row)
{
    static const char *const plain[] = {"id", "quantity", "model", "params"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        fputs("| ", page);
        put(page, results_text(results, row, plain[i]));
        fputc(' ', page);
    }
    fputs("| ", page);
    put(page, results_text(results, row, "published"));
    fputc(' ', page);
    put(page, results_text(results, row, "unit"));
    fputs(" | ", page);
    put(page, results_text(results, row, "reason"));
    fputs(" |\n", page);
}

static void put_section(FILE *page, const struct results *results, int section)
{
    const char *verdict = audit_verdict_name(sections[section].verdict);
    bool begun = false;
    for (size_t row = 0; row < results->row_count; row++) {
        if (strcmp(results_text(results, row, "verdict"), verdict) != 0)
            continue;
        if (!begun)
            fprintf(page,
                    "\n## %s\n\n%s\n\n| id | quantity | model | inputs | published | recomputed "
                    "|\n|---|---|---|---|---|---|\n",
                    sections[section].title, sections[section].meaning);
        begun = true;
        put_row(page, results, row);
    }
}

static bool make_page(char **text, size_t *length, const struct results *results, const char *source)
{
    size_t counts[AUDIT_VERDICTS];
    FILE *page = open_memstream(text, length);
    if (!page)
        return false;
    audit_counts(results, counts);
    fprintf(page, "# Published numbers, recomputed\n\n%zu numbers of ", results->row_count);
    put(page, source);
    fputs(
        ". Each was computed again from the published config of its model and the inputs\nbeside it, in whole bytes; a "
        "wrong one is explained where changing a single input gives the printed number.\n\n| verdict | numbers "
        "|\n|---|---:|\n",
        page);
    for (int i = 0; i < SECTIONS; i++)
        fprintf(page, "| %s | %zu |\n", audit_verdict_name(sections[i].verdict), counts[sections[i].verdict]);
    for (int i = 0; i < SECTIONS; i++)
        put_section(page, results, i);
    bool failed = ferror(page);
    return fclose(page) == 0 && !failed;
}

enum status audit_page_write(const struct results *results, const char *folder, const char *source, struct error *error)
{
    struct row_file file;
    char *text = NULL, *path = NULL;
    size_t length;
    if (!make_page(&text, &length, results, source) || asprintf(&path, "%s/audit.md", folder) < 0) {
        free(text);
        return error_set(error, STATUS_DEVICE, "audit: out of memory");
    }
    enum status status = row_file_create(&file, path, error);
    if (!status)
        status = row_file_append(&file, text, length, error);
    if (!status)
        status = row_file_put_in_place(&file, error);
    row_file_close(&file);
    free(text);
    free(path);
    return status;
}
