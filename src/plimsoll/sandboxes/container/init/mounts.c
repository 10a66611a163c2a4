/* Mounts: which of them a walk over the file system enters.
 *
 * What cannot be written to holds nothing of anybody's use, and is left out; so are the
 * kernel's own file systems. What is written to memory alone may be removed from. In any other
 * place that can be written to, something new is no more than found.
 */
#include "plimsoll.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(word, *list))
            return true;
    return false;
}

static bool has_option(char *options, const char *wanted)
{
    for (char *option; (option = strsep(&options, ","));)
        if (!strcmp(option, wanted))
            return true;
    return false;
}

/* The kernel writes blanks and the like as three octal digits. */
static void unescape(char *text)
{
    char *to = text;
    for (char *from = text; *from; from++) {
        unsigned code;
        if (*from == '\\' && sscanf(from + 1, "%3o", &code) == 1) {
            *to++ = (char)code;
            from += 3;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
}

static int rule_for(const char *path, const char *kind, bool read_only)
{
    static const char *const kernels[] = {"proc", "sysfs", "cgroup", "cgroup2", "devpts", NULL};
    static const char *const in_memory[] = {"tmpfs", "ramfs", "mqueue", NULL};
    if (!strcmp(path, "/"))
        return WALKED;
    if (read_only || is_one_of(kind, kernels))
        return LEFT_OUT;
    return is_one_of(kind, in_memory) ? WALKED : WALKED_FOR_GOOD;
}

bool add_border(struct borders *borders, const char *path, int rule)
{
    struct border *grown = realloc(borders->all, (borders->count + 1) * sizeof *grown);
    char *copy = strdup(path);
    if (grown)
        borders->all = grown;
    if (!grown || !copy) {
        free(copy);
        return false;
    }
    borders->all[borders->count].path = copy;
    borders->all[borders->count++].rule = rule;
    return true;
}

/* id parent device root PATH OPTIONS optional… - KIND source OPTIONS */
static bool add_mount(struct borders *borders, char *line)
{
    char *words[6] = {0}, *kind = NULL, *more = NULL;
    char *rest = strstr(line, " - ");
    for (int i = 0; i < 6; i++)
        words[i] = strsep(&line, " ");
    if (!rest || !words[5])
        return true;
    rest += 3;
    kind = strsep(&rest, " ");
    strsep(&rest, " ");
    more = strsep(&rest, " \n");
    unescape(words[4]);
    bool read_only = has_option(words[5], "ro") || (more && has_option(more, "ro"));
    return add_border(borders, words[4], rule_for(words[4], kind, read_only));
}

bool read_borders(struct borders *borders)
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen("/proc/self/mountinfo", "re");
    bool whole = file != NULL;
    while (whole && getline(&line, &room, file) > 0)
        whole = add_mount(borders, line);
    free(line);
    if (file)
        fclose(file);
    return whole;
}

/* The last one counts: of two mounts at one place, it is the one that is seen. */
const struct border *border_at(const struct borders *borders, const char *path)
{
    for (size_t i = borders->count; i--;)
        if (!strcmp(borders->all[i].path, path))
            return &borders->all[i];
    return NULL;
}
