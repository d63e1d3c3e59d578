#include "tests/experiment_place.h"

#include "bench/harness/output.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64], binary[4096], error_text[1 << 14];

static const char config_text[] =
    "{\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 32,"
    "\"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    "\"hidden_act\": \"silu\", \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"
    "\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\", \"use_sliding_window\": false}";

static int write_model(const char *name, const char *config)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (mkdir(path, 0777) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/%s/config.json", folder, name);
    FILE *file = fopen(path, "wb");
    return file && fputs(config, file) >= 0 && fclose(file) == 0 ? 0 : -1;
}

int place_make(void **state)
{
    (void)state;
    const char *given = getenv("KVLAB_BIN");
    strcpy(folder, "/tmp/kvlab-place-XXXXXX");
    if (!realpath(given ? given : "build/kvlab", binary) || !mkdtemp(folder))
        return -1;
    return write_model("tiny", config_text);
}

void place_model(const char *name, const char *config)
{
    assert_int_equal(write_model(name, config), 0);
}

const char *place_folder(void)
{
    return folder;
}

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts;
    (void)kind;
    (void)place;
    return remove(path);
}

int place_remove(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static char *read_whole(const char *path)
{
    enum { MOST = 1 << 20 };
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, MOST);
    assert_non_null(text);
    if (!file)
        fail_msg("%s is missing", path);
    assert_true(fread(text, 1, MOST - 1, file) < MOST - 1);
    fclose(file);
    return text;
}

char *place_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return read_whole(path);
}

const char *place_run(const char *line, int status)
{
    char command[8192], path[128], model[128] = "", *runner = getenv("KVLAB_RUNNER"); /* qemu-aarch64, say */
    if (!strstr(line, "--model "))
        snprintf(model, sizeof model, "--model '%s/tiny'", folder);
    int length =
        snprintf(command, sizeof command, "%s '%s' run %s %s --device cpu --out '%s/out' > '%s/stdout' 2> '%s/stderr'",
                 runner ? runner : "", binary, line, model, folder, folder, folder);
    assert_in_range(length, 1, (int)sizeof command - 1);
    int ended = system(command);
    snprintf(path, sizeof path, "%s/stderr", folder);
    char *text = read_whole(path);
    snprintf(error_text, sizeof error_text, "%s", text);
    free(text);
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status)
        fail_msg("kvlab run %s: status %d, not %d: %s", line, WIFEXITED(ended) ? WEXITSTATUS(ended) : -1, status,
                 error_text);
    return error_text;
}

struct csv_table place_csv(const char *name)
{
    char path[128];
    struct csv_table table = {0};
    struct error error = {0};
    snprintf(path, sizeof path, "%s/out/%s.csv", folder, name);
    if (csv_table_read(&table, path, &error) != STATUS_OK)
        fail_msg("%s", error.message);
    return table;
}

char *place_meta(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/out/%s.meta.json", folder, name);
    return read_whole(path);
}

const char *place_text(const struct csv_table *table, size_t row, const char *column)
{
    int at = csv_table_column(table, column);
    if (at < 0 || row >= table->row_count)
        fail_msg("no column %s or no row %zu", column, row);
    return table->cells[row][at];
}

static const char *number(const struct csv_table *table, size_t row, const char *column)
{
    const char *text = place_text(table, row, column);
    if (!text[0])
        fail_msg("row %zu has nothing in column %s", row, column);
    return text;
}

int64_t place_int(const struct csv_table *table, size_t row, const char *column)
{
    return strtoll(number(table, row, column), NULL, 10);
}

double place_real(const struct csv_table *table, size_t row, const char *column)
{
    return strtod(number(table, row, column), NULL);
}

void place_set(const char *name, size_t row, const char *column, const char *value)
{
    char path[128];
    struct csv_table table = place_csv(name);
    int at = csv_table_column(&table, column);
    assert_true(at >= 0 && row < table.row_count);
    free(table.cells[row][at]);
    table.cells[row][at] = strdup(value);
    snprintf(path, sizeof path, "%s/out/%s.csv", folder, name);
    FILE *file = fopen(path, "wb");
    bool *quoted = calloc(table.column_count, sizeof *quoted); /* where it must be */
    assert_true(file && quoted);
    for (size_t i = 0; i < table.column_count; i++)
        quoted[i] = true;
    for (size_t i = 0; i <= table.row_count; i++) {
        size_t length;
        char **cells = i ? table.cells[i - 1] : table.columns;
        char *line = csv_line((const char *const *)cells, quoted, table.column_count, &length);
        assert_true(line && fputs(line, file) >= 0);
        free(line);
    }
    assert_int_equal(fclose(file), 0);
    free(quoted);
    csv_table_free(&table);
}

void place_assert_near(double a, double b, double tolerance, const char *what)
{
    if (!(fabs(a - b) <= tolerance))
        fail_msg("%s: %.9g is not %.9g (tolerance %g)", what, a, b, tolerance);
}

void place_assert_columns(const struct csv_table *table, const char *columns)
{
    char wanted[1024];
    snprintf(wanted, sizeof wanted, "model,device,dtype,weights,%s", columns);
    size_t at = 0;
    for (char *name = strtok(wanted, ","); name; name = strtok(NULL, ","), at++) {
        assert_true(at < table->column_count);
        assert_string_equal(table->columns[at], name);
    }
}
