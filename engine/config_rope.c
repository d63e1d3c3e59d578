/* RoPE's part of a config: rope_theta, scaling of type "llama3", and the frequencies that come of them. */
#include "engine/config_keys.h"

#include <math.h>
#include <string.h>

static const double MAX_THETA = 1e15, MAX_FACTOR = 1e6;

/* Keys of the rope object that are read; any other would change the angles in a way that is not understood. */
static const char *const READ_KEYS[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings"};

static enum status refuse_unknown_keys(const struct config_keys *rope)
{
    void *iterator = json_object_iter((json_t *)rope->object);
    for (; iterator; iterator = json_object_iter_next((json_t *)rope->object, iterator)) {
        bool read = json_is_null(json_object_iter_value(iterator));
        for (size_t i = 0; i < sizeof READ_KEYS / sizeof READ_KEYS[0]; i++)
            read = read || strcmp(json_object_iter_key(iterator), READ_KEYS[i]) == 0;
        char shown[64];
        if (!read)
            return config_refuse(rope, json_input_printable(json_object_iter_key(iterator), shown, sizeof shown),
                                 "is not understood, and its angles would be wrong");
    }
    return STATUS_OK;
}

static enum status read_llama3(const struct config_keys *rope, struct config *config)
{
    struct rope_llama3 *llama3 = &config->rope_llama3;
    config->has_rope_llama3 = true;
    if (config_real(rope, "factor", NAN, 0, MAX_FACTOR, &llama3->factor) != STATUS_OK ||
        config_real(rope, "low_freq_factor", NAN, 0, MAX_FACTOR, &llama3->low_freq_factor) != STATUS_OK ||
        config_real(rope, "high_freq_factor", NAN, 0, MAX_FACTOR, &llama3->high_freq_factor) != STATUS_OK ||
        config_count(rope, "original_max_position_embeddings", INT32_MAX, &llama3->original_max_position_embeddings) !=
            STATUS_OK)
        return rope->error->status;
    if (llama3->high_freq_factor <= llama3->low_freq_factor)
        return config_refuse(rope, "high_freq_factor", "%g must be greater than low_freq_factor %g",
                             llama3->high_freq_factor, llama3->low_freq_factor);
    return STATUS_OK;
}

/* Older files: "rope_theta" at the top and "rope_scaling" for the rest. Newer: everything in "rope_parameters". */
enum status config_read_rope(const struct config_keys *keys, struct config *config)
{
    const json_t *scaling = config_key(keys, "rope_scaling"), *parameters = config_key(keys, "rope_parameters");
    if (config_real(keys, "rope_theta", 10000, 1, MAX_THETA, &config->rope_theta) != STATUS_OK)
        return keys->error->status;
    if (scaling && parameters && !json_equal(scaling, parameters))
        return config_refuse(keys, "rope_scaling", "and rope_parameters are both given, and differ; keep one");
    const char *key = parameters ? "rope_parameters" : "rope_scaling";
    const json_t *object = parameters ? parameters : scaling;
    if (!object)
        return STATUS_OK;
    if (!json_is_object(object))
        return config_refuse(keys, key, "must be an object {...} or null");
    struct config_keys rope = {.object = object,
                               .path = keys->path,
                               .within = parameters ? "rope_parameters." : "rope_scaling.",
                               .error = keys->error};

    const char *type_key = config_key(&rope, "rope_type") ? "rope_type" : "type";
    const json_t *type = config_key(&rope, type_key);
    const char *name = type ? json_string_value(type) : parameters ? "default" : NULL;
    char shown[64];
    if (!type && !name)
        return config_refuse(keys, key, "has no rope_type; it must be \"llama3\" or \"default\"");
    bool is_llama3 = name && strcmp(name, "llama3") == 0;
    if (!is_llama3 && !(name && strcmp(name, "default") == 0))
        return config_refuse(&rope, type_key, "%s is not understood; only \"llama3\" and \"default\" are",
                             json_input_show(type, shown, sizeof shown));

    double theta = config->rope_theta;
    if (refuse_unknown_keys(&rope) != STATUS_OK ||
        config_real(&rope, "rope_theta", theta, 1, MAX_THETA, &config->rope_theta) != STATUS_OK)
        return keys->error->status;
    if (config_key(keys, "rope_theta") && theta != config->rope_theta)
        return config_refuse(&rope, "rope_theta", "%g contradicts rope_theta %g at the top level", config->rope_theta,
                             theta);
    return is_llama3 ? read_llama3(&rope, config) : STATUS_OK;
}

/* Long wavelengths are slowed by `factor`, short ones kept, those between blended (transformers' modeling_rope_utils,
   "llama3"). Every step is rounded to f32, and a number over a tensor is that number times the tensor's reciprocal,
   as torch computes it: angles at late positions magnify the last bit. */
static float llama3_frequency(const struct rope_llama3 *rope, float frequency)
{
    double old_context = (double)rope->original_max_position_embeddings;
    float low_wavelength = (float)(old_context / rope->low_freq_factor);
    float high_wavelength = (float)(old_context / rope->high_freq_factor);
    float wavelength = 1.0f / frequency * (float)(2 * M_PI);
    if (wavelength > low_wavelength)
        return frequency / (float)rope->factor;
    if (wavelength < high_wavelength)
        return frequency;
    float smooth = (1.0f / wavelength * (float)old_context - (float)rope->low_freq_factor) /
                   (float)(rope->high_freq_factor - rope->low_freq_factor);
    return (1.0f - smooth) * frequency / (float)rope->factor + smooth * frequency;
}

/* inverse_frequency[i] = theta^(-2 i / head_dim)                                                    (Su et al. 2021) */
void config_inverse_frequency(const struct config *config, float *inverse_frequency)
{
    for (int64_t i = 0; i < config->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)config->head_dim;
        float frequency = 1.0f / powf((float)config->rope_theta, exponent);
        inverse_frequency[i] = config->has_rope_llama3 ? llama3_frequency(&config->rope_llama3, frequency) : frequency;
    }
}
