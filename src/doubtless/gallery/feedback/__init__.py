"""What people say of answers: kept, counted as queries, watched for whether promises hold, and asked for."""
