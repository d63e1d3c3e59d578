#include "bench/commands.h"
#include "bench/harness/session.h"
#include "engine/plan/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Those that ship with weights: they are small, and may be missing where only the sources' text was copied. */
static void list_trained_models(const char *models_dir)
{
    for (const struct config_trained_model *trained = config_trained; trained->name; trained++) {
        char folder[4096], layers[96];
        struct shape shape = {0};
        struct error error;
        if (config_trained_folder(folder, sizeof folder, models_dir, trained, &error) == STATUS_OK &&
            shape_find(&shape, models_dir, trained->name, &error) == STATUS_OK)
            printf("%-20s %8.2f million parameters, layers: %s; runs, trained weights\n", trained->name,
                   (double)shape.total / 1e6, shape_layers_text(&shape, layers, sizeof layers));
        else
            printf("%-20s %s\n", trained->name, error.message);
        shape_free(&shape);
    }
}

static int list_models(void)
{
    char models_dir[4096], path[8192], layers[96], **names;
    size_t count;
    struct error error = {0};
    snprintf(models_dir, sizeof models_dir, "%s/models", config_data_dir());
    enum status status = config_names(models_dir, &names, &count, &error);
    for (size_t i = 0; i < count && !status; i++) {
        struct shape shape;
        struct config config;
        struct error refusal;
        snprintf(path, sizeof path, "%s/%s.json", models_dir, names[i]);
        status = shape_read(&shape, path, &error);
        if (!status)
            printf("%-20s %8.2f billion parameters, layers: %s%s\n", names[i], (double)shape.total / 1e9,
                   shape_layers_text(&shape, layers, sizeof layers),
                   config_read(&config, path, &refusal) == STATUS_OK ? "; runs" : "");
        shape_free(&shape);
    }
    config_names_free(names, count);
    if (!status)
        list_trained_models(models_dir);
    return status ? session_fail(&error) : 0;
}

int command_list(int argc, char **argv)
{
    if (argc == 1 && strcmp(argv[0], "--help") == 0) {
        puts("usage: kvlab list [models]\n\nThe experiments, in the order of the course; or the models that ship: all\n"
             "can be planned, those marked so also run.");
        return 0;
    }
    if (argc == 1 && strcmp(argv[0], "models") == 0)
        return list_models();
    if (argc > 0) {
        struct error error;
        error_set(&error, STATUS_INPUT, "list: unexpected \"%s\"; it is `kvlab list` or `kvlab list models`", argv[0]);
        return session_fail(&error);
    }
    for (const struct experiment *const *experiment = experiments; *experiment; experiment++)
        printf("%-10s %s\n", (*experiment)->name, (*experiment)->summary);
    return 0;
}
