/* Users and groups of the sandbox, read by hand.
 *
 * The files are the agent's to change: each may be a pipe, a device, endless or nonsense, and
 * is read so that none of that does harm.
 */
#include "plimsoll.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGEST = 1 << 20, COLUMNS = 7, MOST_GROUPS = 65536 };

static char accounts[LARGEST + 1], groups[LARGEST + 1];
static gid_t also_in[MOST_GROUPS];

static void read_file(const char *path, char *text)
{
    struct stat info;
    text[0] = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        ssize_t got = read(fd, text, LARGEST);
        text[got > 0 ? got : 0] = 0;
    }
    close(fd);
}

/* The next line's columns, and how many there are; -1 at the end. The line is cut up. */
static int next_row(char **at, char *columns[COLUMNS])
{
    char *line = *at;
    if (!*line)
        return -1;
    char *end = strchr(line, '\n');
    *at = end ? end + 1 : line + strlen(line);
    if (end)
        *end = 0;
    int count = 0;
    while (line && count < COLUMNS) {
        columns[count++] = line;
        if ((line = strchr(line, ':')))
            *line++ = 0;
    }
    return count;
}

static bool parse_number(const char *text, uint32_t *number)
{
    size_t length = strlen(text);
    if (!length || length > 10 || strspn(text, "0123456789") != length)
        return false;
    unsigned long long value = strtoull(text, NULL, 10);
    *number = (uint32_t)value;
    return value < UINT32_MAX;
}

static bool is_either(const char *name, const char *left, const char *right)
{
    return !strcmp(name, left) || !strcmp(name, right);
}

static bool find_user(const char *name, struct account *account)
{
    char *at = accounts, *row[COLUMNS];
    uint32_t uid, gid;
    for (int count; (count = next_row(&at, row)) >= 0;) {
        if (count < 6 || !is_either(name, row[0], row[2]))
            continue;
        if (parse_number(row[2], &uid) && parse_number(row[3], &gid)) {
            const char *home = *row[5] ? row[5] : "/";
            *account = (struct account){.uid = uid, .gid = gid, .home = home, .name = row[0]};
            return true;
        }
    }
    if (!strcmp(name, "root")) {
        *account = (struct account){.home = "/root", .name = "root"};
        return true;
    }
    if (!parse_number(name, &uid))
        return false;
    *account = (struct account){.uid = uid, .home = "/", .name = name};
    return true;
}

static bool is_member(const char *name, char *members)
{
    for (char *member; (member = strsep(&members, ","));)
        if (!strcmp(member, name))
            return true;
    return false;
}

/* One pass over the groups: the wanted one's number, and those the user is listed in. */
static bool find_groups(const char *wanted, struct account *account)
{
    char *at = groups, *row[COLUMNS];
    bool found = !wanted;
    uint32_t gid;
    for (int count; (count = next_row(&at, row)) >= 0;) {
        if (count < 3 || !parse_number(row[2], &gid))
            continue;
        if (!found && is_either(wanted, row[0], row[2])) {
            account->gid = gid;
            found = true;
        }
        if (count >= 4 && account->group_count < MOST_GROUPS && is_member(account->name, row[3]))
            also_in[account->group_count++] = gid;
    }
    account->groups = also_in;
    if (!found && parse_number(wanted, &gid)) {
        account->gid = gid;
        found = true;
    }
    return found;
}

bool find_account(char *user, struct account *account, struct fields *why)
{
    char *name = strsep(&user, ":"), *group = user && *user ? user : NULL;
    read_file("/etc/passwd", accounts);
    read_file("/etc/group", groups);
    if (!find_user(name, account)) {
        add_error(why, "nouser", "the sandbox has no user '%s'", name);
        return false;
    }
    if (!find_groups(group, account)) {
        add_error(why, "nouser", "the sandbox has no group '%s'", group);
        return false;
    }
    return true;
}
