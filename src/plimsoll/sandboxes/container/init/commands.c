/* A command: its runner, and the process it becomes.
 *
 * The runner is a child of init that adopts the command's orphans. While the command runs, the
 * whole tree hangs below the runner, so that init can kill it to the last process; when the
 * command itself ends, the runner goes and what is left running becomes init's.
 */
#include "plimsoll.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const char SYSTEM_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

struct command {
    bool by_shell;
    const char *cwd;
    char *user;
    char **argv; /* ends in NULL */
    char **env;  /* ends in NULL */
};

/* argv[argc] has to be NULL where the first of env stands, so argv is moved one place down. */
static bool parse(char *payload, size_t size, struct command *command)
{
    char **words;
    long count = split_fields(payload, size, &words);
    if (count < 5)
        return false;
    long argc = strtol(words[3], NULL, 10);
    if (argc < 1 || argc > count - 4)
        return false;
    *command = (struct command){
        .by_shell = strchr(words[0], 's') != NULL,
        .cwd = words[1],
        .user = words[2],
        .argv = words + 3,
        .env = words + 4 + argc,
    };
    memmove(words + 3, words + 4, (size_t)argc * sizeof *words);
    words[3 + argc] = NULL;
    return true;
}

static _Noreturn void complain(const char *what, int error, int code)
{
    dprintf(STDERR_FILENO, "plimsoll: %s: %s\n", what, strerror(error));
    _exit(code);
}

static bool drop_to(const struct account *account)
{
    return setgroups(account->group_count, account->groups) == 0 && setgid(account->gid) == 0 &&
           (!account->uid || setuid(account->uid) == 0) &&
           prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

static const char *value_of(const char *key, char **env)
{
    size_t length = strlen(key);
    const char *value = NULL;
    for (; *env; env++)
        if (!strncmp(*env, key, length) && (*env)[length] == '=')
            value = *env + length + 1;
    return value;
}

static char *joined(const char *left, const char *between, const char *right)
{
    size_t size = strlen(left) + strlen(between) + strlen(right) + 1;
    char *text = malloc(size);
    if (text)
        snprintf(text, size, "%s%s%s", left, between, right);
    return text;
}

/* The command's own variables, and those that every command has. */
static char **environment(const struct command *command, const struct account *account)
{
    const char *const defaults[][2] = {
        {"PATH", SYSTEM_PATH}, {"HOME", account->home}, {"USER", account->name}};
    size_t count = 0;
    while (command->env[count])
        count++;
    char **env = calloc(count + 4, sizeof *env);
    if (!env)
        return NULL;
    memcpy(env, command->env, count * sizeof *env);
    for (size_t i = 0; i < 3; i++)
        if (!value_of(defaults[i][0], command->env))
            env[count++] = joined(defaults[i][0], "=", defaults[i][1]);
    return env;
}

/* As execvpe, but with the command's own PATH. Returns the errno that says most. */
static int run_by_name(char **argv, char **env)
{
    int telling = 0, last = ENOENT;
    if (strchr(argv[0], '/')) {
        execve(argv[0], argv, env);
        return errno;
    }
    const char *said = value_of("PATH", env);
    char *path = strdup(said ? said : SYSTEM_PATH);
    for (char *folder; path && (folder = strsep(&path, ":"));) {
        char *file = joined(folder, *folder ? "/" : "", argv[0]);
        if (!file)
            return ENOMEM;
        execve(file, argv, env);
        last = errno;
        if (last != ENOENT && last != ENOTDIR && !telling)
            telling = last;
        free(file);
    }
    return telling ? telling : last;
}

/* Turn this process into the command. Its failures end as a shell's would: 126, 127. */
static _Noreturn void become(const struct command *command, const struct account *account)
{
    char *by_shell[] = {"/bin/sh", "-c", command->argv[0], NULL};
    setsid();
    start_like_init();
    offer_to_oom_killer();
    if (!drop_to(account))
        complain(account->name, errno, 126);
    char **env = environment(command, account);
    if (!env)
        complain(command->argv[0], ENOMEM, 126);
    if (chdir(command->cwd) < 0)
        complain(command->cwd, errno, 126);
    if (command->by_shell && access("/bin/bash", F_OK) == 0)
        by_shell[0] = "/bin/bash";
    char **argv = command->by_shell ? by_shell : command->argv;
    int error = run_by_name(argv, env);
    complain(argv[0], error, error == ENOENT ? 127 : 126);
}

static _Noreturn void report_end(const char *key, int value)
{
    static struct fields said;
    add_count(&said, key, (unsigned)value);
    report_and_exit(&said, -1);
}

static _Noreturn void could_not_fork(int error)
{
    if (error == EAGAIN)
        dprintf(STDERR_FILENO, "plimsoll: the sandbox's limit on processes is used up\n");
    else
        dprintf(STDERR_FILENO, "plimsoll: no process could be started: %s\n", strerror(error));
    report_end("exit", 126);
}

/* The runner's whole life. It only waits: what must be killed is killed by init, which nothing
 * in the sandbox can stop or kill. */
void run_command(char *payload, size_t size)
{
    static struct fields why;
    struct command command;
    struct account account;
    if (!parse(payload, size, &command))
        fail_and_exit("the command cannot be read");
    if (!find_account(command.user, &account, &why))
        report_and_exit(&why, -1);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    for (int fd = 0; fd < REPORT_FD; fd++) /* opened anew by its name a pipe is judged by owner */
        (void)!fchown(fd, account.uid, account.gid);
    pid_t child = fork();
    if (child < 0)
        could_not_fork(errno);
    if (child == 0)
        become(&command, &account);
    for (int fd = 0; fd < REPORT_FD; fd++)
        close(fd);
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid == child && WIFSIGNALED(status))
            report_end("signal", WTERMSIG(status));
        if (pid == child)
            report_end("exit", WEXITSTATUS(status));
        if (pid < 0 && errno != EINTR)
            fail_and_exit("the command was lost: %s", strerror(errno));
    }
}
