/* Fields: a payload that is a sequence of (u32 length, bytes). */
#include "plimsoll.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What does not fit is left out: an END is for people, and bounded. */
void add_bytes(struct fields *fields, const char *bytes, size_t size)
{
    if (REPORT_BYTES - fields->used < size + 4)
        return;
    uint32_t length = (uint32_t)size;
    memcpy(fields->bytes + fields->used, &length, 4);
    memcpy(fields->bytes + fields->used + 4, bytes, size);
    fields->used += size + 4;
}

void add_text(struct fields *fields, const char *text)
{
    add_bytes(fields, text, strlen(text));
}

/* A key and its value, or neither of them. */
void add_pair(struct fields *fields, const char *key, const char *value)
{
    if (REPORT_BYTES - fields->used < strlen(key) + strlen(value) + 8)
        return;
    add_text(fields, key);
    add_text(fields, value);
}

void add_count(struct fields *fields, const char *key, unsigned long long value)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", value);
    add_pair(fields, key, text);
}

void add_error(struct fields *fields, const char *key, const char *form, ...)
{
    char text[4096];
    va_list list;
    va_start(list, form);
    vsnprintf(text, sizeof text, form, list);
    va_end(list);
    add_pair(fields, key, text);
}

void send_end(uint32_t number, const char *key, const char *value)
{
    static struct fields fields;
    fields.used = 0;
    add_pair(&fields, key, value);
    send_frame(END, number, fields.bytes, fields.used);
}

static long count_fields(const char *payload, size_t size)
{
    long count = 0;
    for (size_t at = 0; at < size; count++) {
        uint32_t length;
        if (size - at < 4)
            return -1;
        memcpy(&length, payload + at, 4);
        at += 4;
        if (length > size - at)
            return -1;
        at += length;
    }
    return count;
}

long split_fields(char *payload, size_t size, char ***strings)
{
    long count = count_fields(payload, size);
    if (count < 0 || !(*strings = calloc((size_t)count + 1, sizeof **strings)))
        return -1;
    size_t at = 0;
    for (long i = 0; i < count; i++) {
        uint32_t length;
        memcpy(&length, payload + at, 4);
        payload[at] = 0; /* ends the string before it */
        (*strings)[i] = payload + at + 4;
        at += 4 + length;
    }
    payload[size] = 0;
    return count;
}
