/* Finding a model by name or path, and the folder of the published configs. */
#include "engine/config_keys.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef KVLAB_SOURCE_DIR
#define KVLAB_SOURCE_DIR "." /* the Makefile gives the folder it builds from */
#endif

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length > tail && strcmp(text + length - tail, end) == 0;
}

static bool is_directory(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

static bool is_file(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Appends a copy of `name` without its last 5 characters (".json"). */
static bool add_name(char ***names, size_t *count, const char *name)
{
    char **more = realloc(*names, (*count + 1) * sizeof **names);
    if (!more)
        return false;
    *names = more;
    more[*count] = strndup(name, strlen(name) - strlen(".json"));
    return more[*count] && ++*count;
}

enum status config_names(const char *models_dir, char ***names, size_t *count, struct error *error)
{
    *names = NULL;
    *count = 0;
    DIR *directory = opendir(models_dir);
    if (!directory)
        return error_set(error, STATUS_INPUT,
                         "%s: the published configs cannot be read: %s; set KVLAB_DATA to the data folder of the "
                         "sources",
                         models_dir, strerror(errno));
    enum status status = STATUS_OK;
    for (struct dirent *entry; status == STATUS_OK && (entry = readdir(directory));)
        if (entry->d_name[0] != '.' && ends_in(entry->d_name, ".json") && !add_name(names, count, entry->d_name))
            status = error_set(error, STATUS_DEVICE, "%s: out of memory for the list of models", models_dir);
    closedir(directory);
    if (status == STATUS_OK && *count > 0)
        qsort(*names, *count, sizeof **names, by_name);
    if (status != STATUS_OK) {
        config_names_free(*names, *count);
        *names = NULL;
        *count = 0;
    }
    return status;
}

void config_names_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* The published name that `model` means, whatever its case, or NULL. */
static const char *published_name(char *const *names, size_t count, const char *model)
{
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(names[i], model) == 0)
            return names[i];
    return NULL;
}

/* The names that begin as `model` does up to its first '-' or digit: with a hundred models, those are what was meant.
 */
static enum status unknown_model(const char *model, char *const *names, size_t count, struct error *error)
{
    char list[512] = "", shown[128];
    size_t used = 0, alike = strcspn(model, "-0123456789.");
    for (int pass = 0; pass < 2 && used == 0; pass++)
        for (size_t i = 0; i < count && used < sizeof list - 64; i++)
            if (pass == 1 || (alike > 0 && strncasecmp(names[i], model, alike) == 0))
                used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", names[i]);
    return error_set(
        error, STATUS_INPUT,
        "no model '%s': it is neither a folder with a config.json nor one of the %zu of `kvlab list models`: "
        "%s%s",
        json_input_printable(model, shown, sizeof shown), count, list, used >= sizeof list - 64 ? ", ..." : "");
}

static bool holds_safetensors(const char *folder)
{
    DIR *directory = opendir(folder);
    bool found = false;
    for (struct dirent *entry; directory && !found && (entry = readdir(directory));)
        found = ends_in(entry->d_name, ".safetensors") || strcmp(entry->d_name, "model.safetensors.index.json") == 0;
    if (directory)
        closedir(directory);
    return found;
}

/* Joins with a '/', refusing what does not fit. */
static enum status join(char *path, size_t size, const char *folder, const char *name, struct error *error)
{
    if (snprintf(path, size, "%s/%s", folder, name) < (int)size)
        return STATUS_OK;
    return error_set(error, STATUS_INPUT, "%.80s...: the path is too long (at most %zu bytes)", folder, size - 1);
}

/* A folder's config.json, or the file itself. */
static enum status locate_by_path(char *path, size_t size, const char *model, struct error *error)
{
    if (!is_directory(model))
        return snprintf(path, size, "%s", model) < (int)size
                   ? STATUS_OK
                   : error_set(error, STATUS_INPUT, "%.80s...: the path is too long", model);
    if (join(path, size, model, "config.json", error) != STATUS_OK)
        return error->status;
    if (!is_file(path))
        return error_set(error, STATUS_INPUT, "%s: no config.json in this folder; give the folder of a model", model);
    return STATUS_OK;
}

/* ---- the models that ship with weights */

const struct config_trained_model config_trained[] = {
    {"tiny", "tiny/target"}, {"tiny-draft", "tiny/draft"}, {NULL, NULL}};

const struct config_trained_model *config_trained_find(const char *model)
{
    for (const struct config_trained_model *trained = config_trained; trained->name; trained++)
        if (strcasecmp(trained->name, model) == 0)
            return trained;
    return NULL;
}

enum status config_trained_folder(char *path, size_t size, const char *models_dir,
                                  const struct config_trained_model *trained, struct error *error)
{
    char data[PATH_MAX], config[PATH_MAX];
    const char *slash = strrchr(models_dir, '/');
    int length = slash ? (int)(slash - models_dir) : 1;
    snprintf(data, sizeof data, "%.*s", length, slash ? models_dir : ".");
    if (join(path, size, data, trained->folder, error) != STATUS_OK ||
        join(config, sizeof config, path, "config.json", error) != STATUS_OK)
        return error->status;
    if (is_file(config) && holds_safetensors(path))
        return STATUS_OK;
    return error_set(error, STATUS_INPUT,
                     "%s: the trained model '%s' is not there (%s); take the folder from the sources, or train it: "
                     "python3 data/tiny/train.py %s",
                     path, trained->name, is_file(config) ? "no safetensors" : "no config.json",
                     strrchr(trained->folder, '/') + 1);
}

enum status config_locate(char *path, size_t size, const char *models_dir, const char *model, bool *is_published,
                          struct error *error)
{
    char **names, file[NAME_MAX + 1], folder[PATH_MAX];
    size_t count;
    const struct config_trained_model *trained = config_trained_find(model);
    *is_published = false;
    if (trained) {
        if (config_trained_folder(folder, sizeof folder, models_dir, trained, error) != STATUS_OK)
            return error->status;
        return join(path, size, folder, "config.json", error);
    }
    bool is_path = is_directory(model) || (is_file(model) && ends_in(model, ".json"));
    enum status status = config_names(models_dir, &names, &count, error);
    if (status != STATUS_OK && !is_path)
        return status;
    const char *name = published_name(names, count, model);
    *is_published = name != NULL;
    if (name) {
        snprintf(file, sizeof file, "%s.json", name);
        status = join(path, size, models_dir, file, error);
    } else if (is_path) {
        status = locate_by_path(path, size, model, error);
    } else {
        status = unknown_model(model, names, count, error);
    }
    config_names_free(names, count);
    return status;
}

/* The folder's config.json carries its weights along, any other file is a shape alone. */
static enum status find_weights(const char *path, char *weights_dir, size_t size, struct error *error)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (strcmp(slash ? slash + 1 : folder, "config.json") != 0)
        return STATUS_OK;
    if (slash == folder)
        slash++; /* "/config.json" lies in "/" */
    if (slash)
        *slash = '\0';
    const char *found = slash ? folder : ".";
    if (holds_safetensors(found) && snprintf(weights_dir, size, "%s", found) >= (int)size)
        return error_set(error, STATUS_INPUT, "%.80s...: the path is too long (at most %zu bytes)", found, size - 1);
    return STATUS_OK;
}

enum status config_find(struct config *config, const char *models_dir, const char *model, char *weights_dir,
                        size_t size, struct error *error)
{
    char path[PATH_MAX];
    bool is_published;
    weights_dir[0] = '\0';
    *config = (struct config){0};
    enum status status = config_locate(path, sizeof path, models_dir, model, &is_published, error);
    if (status == STATUS_OK)
        status = config_read(config, path, error);
    if (status == STATUS_OK && !is_published)
        status = find_weights(path, weights_dir, size, error);
    const struct config_trained_model *trained = config_trained_find(model);
    if (status == STATUS_OK && trained)
        snprintf(config->name, sizeof config->name, "%s", trained->name);
    return status;
}

/* data/ in the binary's folder or one above it: build/kvlab and build/tests/test_x both find the sources' data. */
static bool beside_binary(char *data, size_t size)
{
    char folder[PATH_MAX], probe[PATH_MAX + sizeof "/data/models"];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (length <= 0)
        return false;
    folder[length] = '\0';
    for (int level = 0; level < 3; level++) {
        char *slash = strrchr(folder, '/');
        if (!slash)
            return false;
        *slash = '\0';
        snprintf(probe, sizeof probe, "%s/data/models", folder);
        if (is_directory(probe))
            return snprintf(data, size, "%s/data", folder) < (int)size;
    }
    return false;
}

const char *config_data_dir(void)
{
    static char data[PATH_MAX];
    const char *given = getenv("KVLAB_DATA");
    if (given && given[0])
        return given;
    if (!data[0] && !beside_binary(data, sizeof data))
        snprintf(data, sizeof data, "%s/data", KVLAB_SOURCE_DIR);
    return data;
}
