/* Tables of struct fields, so that struct_layout.py can compare the structs of this library with their ctypes mirrors. */

#pragma once
#include <stddef.h>
#include <stdint.h>

/* One field, or the whole struct where `field` is empty. A table ends with an entry whose `type` is 0. */
typedef struct {
    const char *type, *field;
    int64_t offset, size; /* in bytes */
} FieldLayout;

#define LAYOUT_OF(type) {#type, "", 0, sizeof(type)}
#define FIELD_OF(type, field) {#type, #field, offsetof(type, field), sizeof(((type *)0)->field)}
#define END_OF_LAYOUT {0, 0, 0, 0}
