/* Folders and names in them, of file systems that an agent may have filled. */
#include "plimsoll.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int open_folder(int parent, const char *name)
{
    return openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool add_name(struct names *names, size_t *room, const char *name)
{
    if (names->count == *room) {
        size_t larger = *room ? *room * 2 : 32;
        char **grown = realloc(names->all, larger * sizeof *grown);
        if (!grown)
            return false;
        names->all = grown;
        *room = larger;
    }
    char *copy = strdup(name);
    if (copy)
        names->all[names->count++] = copy;
    return copy != NULL;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static bool read_names(DIR *stream, struct names *names)
{
    size_t room = 0;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (!entry)
            return errno == 0;
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
            !add_name(names, &room, entry->d_name))
            return false;
    }
}

bool list_names(int folder, struct names *names)
{
    *names = (struct names){0};
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = copy < 0 ? NULL : fdopendir(copy);
    if (!stream) {
        int error = errno;
        if (copy >= 0)
            close(copy);
        errno = error;
        return false;
    }
    bool whole = read_names(stream, names);
    int error = errno;
    closedir(stream);
    if (names->count)
        qsort(names->all, names->count, sizeof *names->all, by_name);
    errno = error;
    return whole;
}

void free_names(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->all[i]);
    free(names->all);
    *names = (struct names){0};
}

/* Whether a link, `depth` folders below a target, stays below it wherever it leads.
 *
 * Steps upwards count only at its beginning, where the folders above it are real ones: after a
 * name they would start from wherever another link leads to. */
bool stays_inside(const char *to, size_t depth)
{
    size_t ups = 0;
    bool named = false;
    if (*to == '/')
        return false;
    while (to) {
        size_t length = strcspn(to, "/");
        bool up = length == 2 && to[0] == '.' && to[1] == '.';
        if (up && named)
            return false;
        ups += up;
        named |= !up;
        to = to[length] ? to + length + 1 : NULL;
    }
    return ups <= depth;
}
