//! Plays the script that `CALLBOARD_SCRIPT` or the first argument names, over stdin and stdout.

fn main() {
    callboard_testkit::stdio::main()
}
