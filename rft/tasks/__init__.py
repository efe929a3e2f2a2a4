"""What is asked: tasks from files, benches and generators."""
