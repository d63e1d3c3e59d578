/* Numbers as somebody printed them ("15.2 GB"), and whether they are a value that is known exactly.

   The precision is that of the text: 15.2 is any value from 15.15 to 15.25, and zeros at the end of a whole number may
   be written only to fill the place, as in 328000. Byte counts are compared in whole numbers of 128 bits. */
#ifndef KVLAB_ENGINE_CLAIMS_PRINTED_H
#define KVLAB_ENGINE_CLAIMS_PRINTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* digits / 10^decimals; "1,024.50" is 102450 and 2 */
struct printed {
    uint64_t digits;
    int decimals;
};

/* Reads a number of at most 18 digits, with a point, commas between groups of three, and an exponent if it has them:
   "12.0", "1,024", "27.63e12". Returns the characters read; 0 where there is no such number. No sign. */
size_t printed_read(struct printed *printed, const char *text, size_t length);
long double printed_value(const struct printed *printed);

/* What is known exactly: a whole number, or a real one. */
struct quantity_value {
    bool whole;
    uint64_t count;   /* whole */
    long double real; /* otherwise */
};
long double quantity_real(const struct quantity_value *value);

enum printed_fit {
    FIT_NONE,
    FIT_EXACT,   /* the value to the last bit */
    FIT_ROUNDED, /* to the digits printed */
    FIT_ZEROS,   /* to the digits before the zeros at the end: 328000 for 327845 */
    FIT_CUT,     /* the digits printed, three or more, the rest cut off instead of rounded */
};

/* Is `printed` times `unit` the value? */
enum printed_fit printed_fit(const struct printed *printed, uint64_t unit, const struct quantity_value *value);
/* Digits that count: without zeros in front, and without those at the end of a whole number. */
int printed_significant(const struct printed *printed);

/* ---- units of memory */
struct byte_unit {
    const char *name;
    uint64_t bytes;
};
extern const struct byte_unit byte_units[]; /* ends with a NULL name */
const struct byte_unit *byte_unit_find(const char *name, size_t length);

/* A number read in a unit that is not the one printed beside it: "KiB printed as KB". */
struct unit_slip {
    const char *name; /* of the unit that it really is */
    uint64_t bytes;
    enum printed_fit fit;
};
/* The unit in which `printed` is the value, where it is not `unit`; false where none is. Units of the same size class
   first (GiB for GB), then thousands of a smaller one (1,000 MiB called a GB), then other classes. A rounded fit counts
   only with two digits or more. */
bool unit_slip_find(struct unit_slip *slip, const struct printed *printed, const struct byte_unit *unit,
                    const struct quantity_value *value);

/* "1,234,567" */
const char *grouped(char *text, size_t size, uint64_t number);

#endif
