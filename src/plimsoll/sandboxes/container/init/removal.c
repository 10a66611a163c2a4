/* Removing trees that an agent may have made: of any depth, with any links and modes in them. */
#include "plimsoll.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEP = 64, MOVED_NAME = 48 };

/* Names in the top folder that too deep folders were moved to. */
struct moved {
    char (*names)[MOVED_NAME];
    size_t count, room;
};

/* What lies very deep is moved up, so that neither the stack nor the number of open files
 * grows with the depth. */
static int move_up(int parent, const char *name, int top, struct moved *moved)
{
    uint64_t random;
    if (moved->count == moved->room) {
        size_t larger = moved->room ? moved->room * 2 : 16;
        void *grown = realloc(moved->names, larger * sizeof *moved->names);
        if (!grown)
            return ENOMEM;
        moved->names = grown;
        moved->room = larger;
    }
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return EAGAIN;
    char *to = moved->names[moved->count];
    snprintf(to, MOVED_NAME, ".plimsoll-deep-%016llx", (unsigned long long)random);
    if (renameat(parent, name, top, to) < 0)
        return errno;
    moved->count++;
    return 0;
}

static int open_to_remove(int parent, const char *name)
{
    struct stat info;
    int folder = open_folder(parent, name);
    if (folder < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0)
        folder = open_folder(parent, name);
    if (folder >= 0 && fstat(folder, &info) == 0 && (info.st_mode & 0700) != 0700)
        fchmod(folder, 0700);
    return folder;
}

static int remove_below(int parent, const char *name, int top, int depth, struct moved *moved)
{
    struct names names;
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM && errno != EACCES)
        return errno;
    if (depth >= DEEP)
        return move_up(parent, name, top, moved);
    int folder = open_to_remove(parent, name);
    if (folder < 0)
        return errno;
    int error = list_names(folder, &names) ? 0 : errno;
    for (size_t i = 0; !error && i < names.count; i++)
        error = remove_below(folder, names.all[i], top, depth + 1, moved);
    free_names(&names);
    close(folder);
    if (!error && unlinkat(parent, name, AT_REMOVEDIR) < 0)
        error = errno;
    return error;
}

int remove_tree(int parent, const char *name)
{
    struct moved moved = {0};
    int error = remove_below(parent, name, parent, 0, &moved);
    while (!error && moved.count) {
        char next[MOVED_NAME];
        memcpy(next, moved.names[--moved.count], sizeof next);
        error = remove_below(parent, next, parent, 0, &moved);
    }
    free(moved.names);
    return error;
}

/* Make a folder and open it; whatever its mode was to be by the umask, it is `mode`. */
static int make_folder(int parent, const char *name, mode_t mode)
{
    if (mkdirat(parent, name, 0755) < 0)
        return -1;
    int folder = open_folder(parent, name);
    if (folder >= 0 && fchmod(folder, mode) < 0) {
        close(folder);
        return -1;
    }
    return folder;
}

/* A link or a file among the folders above is replaced: it could lead anywhere. */
static int enter(int at, const char *part)
{
    int deeper = open_folder(at, part);
    if (deeper >= 0)
        return deeper;
    int error = remove_tree(at, part);
    if (error) {
        errno = error;
        return -1;
    }
    return make_folder(at, part, 0755);
}

/* The last part of a path that may be emptied, cut off; NULL where it may not. */
static char *cut_last(char *path)
{
    static char empty[] = "";
    size_t length = strlen(path);
    while (length && path[length - 1] == '/')
        path[--length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash)
        return NULL;
    *slash = 0;
    char *name = slash + 1, *rest = slash == path ? empty : path + 1;
    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return NULL;
    for (; rest; rest = strchr(rest, '/')) {
        rest += *rest == '/';
        if (!strncmp(rest, "..", 2) && (rest[2] == '/' || !rest[2]))
            return NULL;
    }
    return name;
}

/* Make a path an empty folder, whatever stood there or above it. */
void run_empty(char *payload, size_t size)
{
    static struct fields done;
    char **words, *rest, *name = NULL;
    if (split_fields(payload, size, &words) != 2)
        fail_and_exit("the request cannot be read");
    char *path = strdup(words[0]);
    if (path && words[0][0] == '/')
        name = cut_last(words[0]);
    if (!name)
        fail_and_exit("'%s' cannot be emptied", path);
    int at = open_folder(AT_FDCWD, "/");
    rest = words[0];
    for (char *part; at >= 0 && (part = strsep(&rest, "/"));) {
        if (!*part || !strcmp(part, "."))
            continue;
        int deeper = enter(at, part), error = errno;
        close(at);
        at = deeper;
        errno = error;
    }
    int error = at < 0 ? errno : remove_tree(at, name);
    if (!error && make_folder(at, name, (mode_t)strtol(words[1], NULL, 8)) < 0)
        error = errno;
    if (error)
        fail_and_exit("%s: %s", path, strerror(error));
    add_pair(&done, "done", "1");
    report_and_exit(&done, -1);
}
